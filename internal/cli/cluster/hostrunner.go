package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/logging"
	"github.com/millwright-dev/millwright/internal/local/hostrunner"
	"github.com/millwright-dev/millwright/internal/vm/image"
)

// hostrunnerFlags are the flags of "millwright hostrunner".
type hostrunnerFlags struct {
	name, dir, kubeconfig, volumes string
	images, imageServers           string
	share                          int
	guests                         string
	noOutside                      bool
	logging                        logging.Flags
}

const imageServersUsage = "comma-separated addresses of this machine from which images may be downloaded, as IP:PORT, or IP for all ports"

// NewHostrunner returns "millwright hostrunner".
func NewHostrunner() *cobra.Command {
	flags := &hostrunnerFlags{}
	cmd := &cobra.Command{
		Use:   "hostrunner",
		Short: "Run the hypervisor Pods of one host of a local cluster",
		Long: `Run the hypervisor Pods of one host of a local cluster, as a kubelet would. "millwright up"
starts one such process for each host.

SIGTERM stops the hypervisors gracefully. If this process is killed, they keep running, and
the next one with the same --dir adopts them.`,
		Example: `  millwright hostrunner --name host-1 --dir hosts/host-1 --kubeconfig hosts/host-1/kubeconfig`,
		Hidden:  true, // only "up" starts it
		Args:    args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return flags.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	set := cmd.Flags()
	set.StringVar(&flags.name, "name", "", "name of the host and of its Node; required")
	set.StringVar(&flags.dir, "dir", "", "directory of this host; required")
	set.StringVar(&flags.kubeconfig, "kubeconfig", "", "kubeconfig of the user system:node:NAME; required")
	set.StringVar(&flags.volumes, "volumes", "", "directory that must contain all volumes; empty for any")
	set.StringVar(&flags.images, "images", "", "directory below which file URLs of images may name files; empty for none")
	set.StringVar(&flags.imageServers, "image-servers", "", imageServersUsage)
	set.StringVar(&flags.guests, "switch", "", "socket of the switch between virtual machines; empty for none")
	set.BoolVar(&flags.noOutside, "no-outside", false, "do not let virtual machines connect to anything outside their network")
	set.IntVar(&flags.share, "share", 1, "number of hosts that share the CPUs and memory of this machine")
	flags.logging.Add(set)
	return cmd
}

func (f *hostrunnerFlags) run(ctx context.Context, stderr io.Writer) error {
	if f.name == "" || f.dir == "" || f.kubeconfig == "" || f.share < 1 {
		return args.Wrongf("--name, --dir, --kubeconfig: required; --share: must be greater than 0")
	}
	if _, err := image.ParseServers(f.imageServers); err != nil {
		return args.Wrongf("--image-servers: %v", err)
	}
	log, err := f.logging.SetUp(stderr)
	if err != nil {
		return err
	}
	config, _, err := (&kubeconfig.Flags{File: f.kubeconfig}).Load()
	if err != nil {
		return err
	}
	config.UserAgent = "millwright-hostrunner"
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find the path of this program, which hypervisors run: %w", err)
	}
	capacity, err := shareOfMachine(f.share)
	if err != nil {
		return err
	}
	return hostrunner.Run(ctx, hostrunner.Config{
		Name: f.name, Dir: f.dir, REST: config, Program: program, Path: os.Getenv("PATH"),
		Capacity: capacity, VolumesDir: f.volumes, Images: f.images, ImageServers: f.imageServers,
		Switch: f.guests, NoOutside: f.noOutside, Log: log.WithName(f.name),
	})
}

// shareOfMachine returns the capacity of each host if several hosts share this machine.
func shareOfMachine(hosts int) (corev1.ResourceList, error) {
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		return nil, fmt.Errorf("cannot read the memory size of this host: %w", err)
	}
	memory := int64(machine.Totalram) * int64(machine.Unit) / int64(hosts)
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(int64(runtime.NumCPU())*1000/int64(hosts), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
	}, nil
}
