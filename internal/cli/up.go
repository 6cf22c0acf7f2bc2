package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/local"
	"github.com/millwright-dev/millwright/internal/manager"
)

// upFlags are the flags of "millwright up".
type upFlags struct {
	managerFlags
	dir      string
	binaries string
}

func newUpCommand() *cobra.Command {
	flags := &upFlags{}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a control plane and a manager on this machine",
		Long: `Run a control plane and a manager on this machine.

The control plane is a real one: etcd, kube-apiserver, kube-controller-manager and
kube-scheduler, as "make controlplane" builds them. It is control and target cluster at
the same time. The manager's driver simulates VMs. Ctrl-C stops everything in order; the
data stays in the folder, and the next "up" goes on with it.`,
		Example: `  millwright up
  kubectl --kubeconfig .millwright/kubeconfig apply -f examples/`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return flags.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	set := cmd.Flags()
	set.StringVar(&flags.dir, "dir", ".millwright", "folder for data, kubeconfig and logs")
	set.StringVar(&flags.binaries, "binaries", "", "folder with the control plane's programs; empty for those that \"make controlplane\" built last")
	flags.addTuning(set)
	// The lock of the folder elects the leader already, and need not run out after a kill.
	flags.config.Election.Enabled = false
	set.Lookup("leader-elect").DefValue = "false"
	flags.logging.addFlags(set)
	return cmd
}

func (f *upFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := f.validateTuning(); err != nil {
		return &usageError{command: "up", err: err}
	}
	log, err := f.logging.setUp(stderr)
	if err != nil {
		return &usageError{command: "up", err: err}
	}
	binaries, err := f.findBinaries()
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "Starting a control plane in %s ...\n", f.dir)
	begin := time.Now()
	plane, err := local.Start(ctx, local.Config{Dir: f.dir, Binaries: binaries, Logger: log.WithName("local")})
	if err != nil {
		return explainCancel(ctx, err)
	}
	err = f.manage(ctx, plane, log, func() {
		fmt.Fprintf(stdout, "Ready after %.1f s. Try:\n\n  export KUBECONFIG=%s\n  %s apply -f examples/\n  %s get machinedeployments,machinesets,machines,nodes\n\nCtrl-C stops everything; the data stays.\n",
			time.Since(begin).Seconds(), plane.Kubeconfig(), filepath.Join(binaries, "kubectl"), filepath.Join(binaries, "kubectl"))
	})
	fmt.Fprintln(stdout, "Stopping ...")
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return errors.Join(err, plane.Stop(stopping))
}

func (f *upFlags) manage(ctx context.Context, plane *local.ControlPlane, log logr.Logger, ready func()) error {
	admin := plane.RESTConfig()
	crds, err := fs.Sub(config.Files, "crd")
	if err != nil {
		return fmt.Errorf("reading the CRDs: %w", err)
	}
	if err := local.InstallCRDs(ctx, admin, crds); err != nil {
		return explainCancel(ctx, err)
	}
	f.driver = driverFlags{name: "sim", simDir: filepath.Join(f.dir, "sim"), simHeartbeat: defaultHeartbeat}
	f.config.Control, f.config.Target = admin, plane.RESTConfig()
	f.config.Control.UserAgent, f.config.Target.UserAgent = managerAgent, managerAgent
	f.config.Namespace, f.config.Log, f.config.NodeConditions = "default", log, splitList(f.nodeConditions)
	if err := f.driver.open(&f.config); err != nil {
		return err
	}
	ready()
	return explain(manager.Run(ctx, f.config), f.config)
}

func (f *upFlags) findBinaries() (string, error) {
	if f.binaries != "" {
		return f.binaries, nil
	}
	cache := os.Getenv("MILLWRIGHT_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("looking for the control plane's programs: %w", err)
		}
		cache = filepath.Join(user, "millwright")
	}
	return local.FindBinaries(cache)
}

// explainCancel: that the user ended it is no failure.
func explainCancel(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
