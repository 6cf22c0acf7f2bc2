package common

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The logs of the two controllers.
const (
	managerLog  = "mcm_process.log"
	machinesLog = "mc_process.log"
)

// command is one of the shell, for a controller.
type command struct {
	line string
	// made: make runs the controller, and ends with a status of its own when it is told to end.
	made bool
}

// toStart are the commands that the environment gives. Without one, and without an image, a controller is
// started by "make start", where there is such a rule.
func (e environment) toStart() map[string]command {
	commands := map[string]command{}
	for _, controller := range []struct{ log, variable, image, folder, more string }{
		{machinesLog, "MC_COMMAND", e.images.machines, root, ""},
		{managerLog, "MCM_COMMAND", e.images.manager, filepath.Join(root, "dev", "mcm"), " MACHINE_SAFETY_OVERSHOOTING_PERIOD=300ms"},
	} {
		line := os.Getenv(controller.variable)
		switch {
		case line != "":
			commands[controller.log] = command{line: line}
		case e.images.manager == "" && e.images.machines == "" && starts(controller.folder):
			commands[controller.log] = command{line: e.start(controller.folder) + controller.more, made: true}
		}
	}
	return commands
}

// start is the command that MCM's suite starts a controller with.
func (e environment) start(folder string) string {
	return fmt.Sprintf("make --directory=%s start CONTROL_KUBECONFIG=%s TARGET_KUBECONFIG=%s CONTROL_NAMESPACE=%s LEADER_ELECT=false",
		folder, absolute(e.control), absolute(e.target), e.namespace)
}

// starts reports whether the Makefile of a folder has the rule start.
func starts(folder string) bool {
	text, err := os.ReadFile(filepath.Join(folder, "Makefile"))
	return err == nil && (strings.HasPrefix(string(text), "start:") || strings.Contains(string(text), "\nstart:"))
}

// absolute is a path that means the same in another folder.
func absolute(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}
