package common

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Log files of the two controllers.
const (
	managerLog  = "mcm_process.log"
	machinesLog = "mc_process.log"
)

// command is a shell command for a controller.
type command struct {
	line string
	// made means that make runs the controller, and that make exits with its own status after a signal.
	made bool
}

// toStart returns the commands from the environment. Without a command and an image, a controller is started with
// "make start", if the Makefile has that rule.
func (e environment) toStart() map[string]command {
	commands := map[string]command{}
	for _, controller := range []struct{ log, variable, image, dir, more string }{
		{machinesLog, "MACHINE_CONTROLLER_COMMAND", e.images.machines, root, ""},
		{managerLog, "MACHINE_CONTROLLER_MANAGER_COMMAND", e.images.manager, filepath.Join(root, "dev", "mcm"), " MACHINE_SAFETY_OVERSHOOTING_PERIOD=300ms"},
	} {
		line := os.Getenv(controller.variable)
		switch {
		case line != "":
			commands[controller.log] = command{line: line}
		case e.images.manager == "" && e.images.machines == "" && starts(controller.dir):
			commands[controller.log] = command{line: e.start(controller.dir) + controller.more, made: true}
		}
	}
	return commands
}

// start returns the command with which MCM's suite starts a controller.
func (e environment) start(dir string) string {
	return fmt.Sprintf("make --directory=%s start CONTROL_KUBECONFIG=%s TARGET_KUBECONFIG=%s CONTROL_NAMESPACE=%s LEADER_ELECT=false",
		dir, absolute(e.control), absolute(e.target), e.namespace)
}

// starts reports whether the Makefile in a directory has the rule start.
func starts(dir string) bool {
	text, err := os.ReadFile(filepath.Join(dir, "Makefile"))
	return err == nil && (strings.HasPrefix(string(text), "start:") || strings.Contains(string(text), "\nstart:"))
}

// absolute returns a path that does not depend on the working directory.
func absolute(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}
