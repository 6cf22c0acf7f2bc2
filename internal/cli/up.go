package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
)

// upFlags are the flags of "millwright up".
type upFlags struct {
	managerFlags
	dir      string
	binaries string
	images   string
	hosts    int
	ports    upPorts
	network  netip.Prefix
	accel    string
	noFsync  bool
	logFile  string
}

// upPorts are ports on 127.0.0.1. 0 is any free one, which is then kept.
type upPorts struct {
	api, images, vms int
}

// The ports of local mode, which examples name.
const (
	defaultAPIPort   = 16443
	defaultImagePort = 16480
)

func newUpCommand() *cobra.Command {
	flags := &upFlags{}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a cluster on this machine whose nodes are virtual machines",
		Long: `Run a cluster on this machine whose nodes are virtual machines.

The control plane is a real one: etcd, kube-apiserver, kube-controller-manager and
kube-scheduler, as "make controlplane" builds them. Each host is a process that runs
hypervisors, as a kubelet would. Ctrl-C stops everything in order; the data stays in the
folder, and the next "up" goes on with it, also after a crash.`,
		Example: `  millwright up
  kubectl --kubeconfig .millwright/kubeconfig apply -f examples/

  millwright up --driver sim --dir simulated
  kubectl --kubeconfig simulated/kubeconfig apply -f examples/sim/`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return flags.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), nil)
		},
	}
	flags.addFlags(cmd)
	return cmd
}

func (f *upFlags) addFlags(cmd *cobra.Command) {
	set := cmd.Flags()
	set.StringVar(&f.dir, "dir", defaultDir, "folder for data, disks, kubeconfig and logs")
	set.IntVar(&f.hosts, "hosts", 2, "number of hosts that run virtual machines; this machine's CPUs and memory are shared among them")
	set.IntVar(&f.ports.api, "api-port", defaultAPIPort, "port of the API server on 127.0.0.1; 0 for a free one")
	set.IntVar(&f.ports.images, "image-port", defaultImagePort, "port on 127.0.0.1 that the files of --images are served on; 0 for a free one")
	set.IntVar(&f.ports.vms, "vm-port", 0, "port of the VM controller on 127.0.0.1; 0 for a free one")
	set.StringVar(&f.images, "images", "", `folder with kernels and disk images for virtual machines; empty for what "make guest" built last`)
	set.StringVar(&f.binaries, "binaries", "", "folder with the control plane's programs; empty for those that \"make controlplane\" built last")
	set.TextVar(&f.network, "vm-network", netip.MustParsePrefix("10.77.0.0/16"), "network of the virtual machines; its second address leads to this machine's loopback")
	set.StringVar(&f.accel, "accelerator", "auto", "how QEMU runs guests: auto, kvm or tcg")
	set.BoolVar(&f.noFsync, "unsafe-no-fsync", false, "let etcd skip fsync: faster, and data may be lost if this machine crashes")
	set.StringVar(&f.logFile, "log-file", "", `file for the controllers' logs; empty for logs/millwright.log in --dir, "-" for stderr`)
	set.StringVar(&f.driver.name, "driver", driverVM, `driver that makes and removes machines: "vm" makes virtual machines, "sim" only simulates`)
	f.addTuning(set)
	// The lock of the folder elects the leader already, and need not run out after a kill.
	f.config.Election.Enabled = false
	set.Lookup("leader-elect").DefValue = "false"
	f.logging.addFlags(set)
}

// validateUp says all that is wrong with the flags at once.
func (f *upFlags) validateUp() error {
	var errs []error
	if f.hosts < 0 || f.hosts > 100 {
		errs = append(errs, fmt.Errorf("--hosts: %d is not between 0 and 100", f.hosts))
	}
	for _, port := range []struct {
		flag  string
		value int
	}{{"api-port", f.ports.api}, {"image-port", f.ports.images}, {"vm-port", f.ports.vms}} {
		if port.value < 0 || port.value > 65535 {
			errs = append(errs, fmt.Errorf("--%s: %d is not between 0 and 65535", port.flag, port.value))
		}
	}
	if f.driver.name != driverVM && f.driver.name != driverSim {
		errs = append(errs, fmt.Errorf("--driver: there is no driver %q; known drivers: vm, sim", f.driver.name))
	}
	errs = append(errs, f.validateVMs()...)
	return errors.Join(append(errs, f.validateTuning())...)
}

// validateVMs says what is wrong with the flags that virtual machines need.
func (f *upFlags) validateVMs() []error {
	var errs []error
	if f.hosts == 0 && f.driver.name == driverVM {
		errs = append(errs, errors.New("--hosts: the driver vm needs at least 1"))
	}
	if !f.network.Addr().Is4() || f.network != f.network.Masked() || f.network.Bits() < 8 || f.network.Bits() > 24 {
		errs = append(errs, fmt.Errorf("--vm-network: %s is not an IPv4 network of 8 to 24 bits", f.network))
	}
	if !slices.Contains([]string{"auto", "kvm", "tcg"}, f.accel) {
		errs = append(errs, fmt.Errorf("--accelerator: %q is none of auto, kvm and tcg", f.accel))
	}
	return errs
}

// run runs local mode until the context ends, or until what use does has ended, if there
// is such a function. It is called when everything runs.
func (f *upFlags) run(ctx context.Context, stdout, stderr io.Writer, use func(context.Context, *localMode) error) error {
	if err := f.validateUp(); err != nil {
		return &usageError{command: "up", err: err}
	}
	if err := f.refuseOtherDriver(); err != nil {
		return err
	}
	logs, err := f.openLog(stderr)
	if err != nil {
		return err
	}
	defer logs.Close() // nothing is logged any more
	log, err := f.logging.setUp(logs)
	if err != nil {
		return &usageError{command: "up", err: err}
	}
	mode := &localMode{upFlags: f, log: log}
	if err := mode.find(); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "Starting a cluster in %s ...\n", f.dir)
	begin := time.Now()
	if err := mode.start(ctx); err != nil {
		return explainCancel(ctx, explainPort(err))
	}
	if use == nil {
		use = func(ctx context.Context, mode *localMode) error {
			mode.greet(stdout, time.Since(begin))
			<-ctx.Done()
			return nil
		}
	}
	err = mode.run(ctx, use)
	fmt.Fprintln(stdout, "Stopping ...")
	return errors.Join(err, mode.stop(context.WithoutCancel(ctx)))
}

// driverFile is the file in the folder that says which driver it was made with.
func (f *upFlags) driverFile() string { return filepath.Join(f.dir, "driver") }

// refuseOtherDriver keeps a driver from a folder with machines of another one, of which it
// would not know.
func (f *upFlags) refuseOtherDriver() error {
	content, err := os.ReadFile(f.driverFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil // a new folder
	}
	if err != nil {
		return fmt.Errorf("looking which driver %s was made with: %w", f.dir, err)
	}
	if made := strings.TrimSpace(string(content)); made != f.driver.name {
		return fmt.Errorf("--driver: the folder %s was made with the driver %s, which %s would not go on with: use --driver %s, or another folder with --dir",
			f.dir, made, f.driver.name, made)
	}
	return nil
}

// upAgain is what to type to go on with a folder.
func upAgain(dir string) string {
	content, err := os.ReadFile((&upFlags{dir: dir}).driverFile())
	if err == nil && strings.TrimSpace(string(content)) == driverSim {
		return "millwright up --driver sim --dir " + dir
	}
	return "millwright up --dir " + dir
}

// rememberDriver writes down which driver the folder is made with.
func (f *upFlags) rememberDriver(context.Context) error {
	if err := os.WriteFile(f.driverFile(), []byte(f.driver.name+"\n"), 0o600); err != nil {
		return fmt.Errorf("writing down the driver: %w", err)
	}
	return nil
}

// openLog opens the file for logs. Another process may have the folder, and then this one
// adds a few lines to its log.
func (f *upFlags) openLog(stderr io.Writer) (io.WriteCloser, error) {
	path := f.logFile
	switch path {
	case "-":
		return unclosed{stderr}, nil
	case "":
		path = filepath.Join(f.dir, "logs", "millwright.log")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("the data folder %s is not writable: %w", f.dir, err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log: %w", err)
	}
	return file, nil
}

// unclosed is a writer that is not ours to close.
type unclosed struct{ io.Writer }

// Close implements io.Closer.
func (unclosed) Close() error { return nil }

// find looks for the programs and images.
func (m *localMode) find() error {
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	if m.binaries == "" {
		if m.binaries, err = controlplane.FindBinaries(cache); err != nil {
			return err
		}
	}
	if m.images == "" {
		m.images = filepath.Join(cache, "guest", "current")
	}
	m.program, err = os.Executable()
	if err != nil {
		return fmt.Errorf("looking for this program, which hosts run too: %w", err)
	}
	return nil
}

// cacheDir is where "make" puts what takes long to build.
func cacheDir() (string, error) {
	if dir := os.Getenv("MILLWRIGHT_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("looking for what was built: %w", err)
	}
	return filepath.Join(dir, "millwright"), nil
}

// explainCancel: that the user ended it is no failure.
func explainCancel(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// explainPort says how to use another port than one that is taken.
func explainPort(err error) error {
	var taken *controlplane.PortTakenError
	if !errors.As(err, &taken) {
		return err
	}
	return fmt.Errorf("%w: choose others with --api-port, --image-port and --vm-port (0 is any free one); the examples name %d and %d",
		taken, defaultAPIPort, defaultImagePort)
}
