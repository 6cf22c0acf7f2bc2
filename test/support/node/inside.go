package node

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/millwright-dev/millwright/test/support/env"
)

// asNode is an environment variable. It makes a test binary run as the process that it describes.
const asNode = "MILLWRIGHT_TEST_AS_NODE"

// process is the configuration of the first process of a node, or of the router. The other field is nil.
type process struct {
	Node   *inside
	Router *router
}

const (
	cniPlugins = "/usr/lib/cni"
	// Files in the node's directory.
	containerd    = "containerd.sock"
	kubeletConfig = "kubelet.kubeconfig"
	proxyConfig   = "kube-proxy.kubeconfig"
)

// inside is the configuration of the node's first process.
type inside struct {
	Name, IP, PodRange    string
	Dir, Cgroup, Binaries string
	Layouts               []string
	KubeProxy             bool
}

// Main runs as a node or router and exits if the environment requests that; otherwise it does nothing.
func Main() {
	description, is := os.LookupEnv(asNode)
	if !is {
		return
	}
	as := process{}
	err := json.Unmarshal([]byte(description), &as)
	switch {
	case err != nil:
	case as.Router != nil:
		err = as.Router.start()
	default:
		err = as.Node.start()
	}
	fmt.Fprintln(os.Stderr, "the process ended:", err)
	os.Exit(1)
}

// start runs the node until the process is killed, or a program fails.
func (in *inside) start() error {
	for _, step := range []func() error{in.mount, awaitNetwork, in.offer, in.startContainerd, in.importImages, in.startKubeProxy, in.runKubelet} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// mount isolates the node's mounts, and mounts the directories that its programs would otherwise change on the
// host.
func (in *inside) mount() error {
	const none = ""
	for _, propagation := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} { // the kubelet requires a shared mount
		if err := unix.Mount(none, "/", none, unix.MS_REC|propagation, none); err != nil {
			return fmt.Errorf("keeping mounts apart: %w", err)
		}
	}
	for _, at := range []string{"/run", "/var", "/opt"} {
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, none); err != nil {
			return fmt.Errorf("mounting %s: %w", at, err)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, none); err != nil {
		return fmt.Errorf("mounting proc: %w", err)
	}
	return nil
}

func (in *inside) path(name string) string { return filepath.Join(in.Dir, name) }

// command returns a command whose output goes to a log. The program is killed with this process, which is the
// first of its PID namespace.
func (in *inside) command(name string, args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(in.path(filepath.Base(name)+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(context.Background(), name, args...)
	command.Stdout, command.Stderr = log, log
	return command, nil
}

func (in *inside) startContainerd() error {
	command, err := in.command("containerd", "--config", in.path("containerd.toml"))
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, env.WaitTimeout, true, func(ctx context.Context) (bool, error) {
		return in.ctr(ctx, nil, "version") == nil, nil
	})
}

// ctr runs containerd's command-line client.
func (in *inside) ctr(ctx context.Context, stdin io.Reader, args ...string) error {
	command := exec.CommandContext(ctx, "ctr", append([]string{"--address", in.path(containerd), "--namespace", "k8s.io"}, args...)...)
	command.Stdin = stdin
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("ctr %v: %w: %s", args, err, out)
	}
	return nil
}

func (in *inside) importImages() error {
	for _, layout := range in.Layouts {
		archive, to := io.Pipe()
		go func() {
			w := tar.NewWriter(to)
			to.CloseWithError(errors.Join(w.AddFS(os.DirFS(layout)), w.Close()))
		}()
		if err := in.ctr(context.Background(), archive, "images", "import", "-"); err != nil {
			return err
		}
	}
	return nil
}

// startKubeProxy starts kube-proxy, if the node has one. It sets no limits of connections, which the nodes share.
func (in *inside) startKubeProxy() error {
	if !in.KubeProxy {
		return nil
	}
	command, err := in.command(filepath.Join(in.Binaries, "kube-proxy"),
		"--kubeconfig="+in.path(proxyConfig), "--hostname-override="+in.Name, "--proxy-mode=iptables", "--cluster-cidr="+in.PodRange,
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
	if err != nil {
		return err
	}
	return command.Start()
}

// logs returns the names of the logs of the node's programs.
func (in *inside) logs() []string {
	names := []string{"containerd.log", "kubelet.log"}
	if in.KubeProxy {
		names = append(names, "kube-proxy.log")
	}
	return names
}

// runKubelet runs the kubelet, and restarts it when it exits, as an init system does.
func (in *inside) runKubelet() error {
	for {
		command, err := in.command(filepath.Join(in.Binaries, "kubelet"),
			"--config="+in.path("kubelet.yaml"), "--kubeconfig="+in.path(kubeletConfig), "--root-dir="+in.path("kubelet"),
			"--cert-dir="+in.path("pki"), "--hostname-override="+in.Name, "--node-ip="+in.IP)
		if err != nil {
			return err
		}
		err = command.Run()
		if command.ProcessState == nil || command.ProcessState.ExitCode() >= 0 {
			return fmt.Errorf("kubelet: %w", err) // exited by itself
		}
	}
}

func arch() string { return runtime.GOARCH }

// files returns the configuration files of the programs by name.
func (in *inside) files() map[string]string {
	return map[string]string{
		// Without permission to raise priorities, containers keep the priority of this test.
		"containerd.toml": fmt.Sprintf(`version = 2
root = %[1]q
state = %[2]q
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = %[3]q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[4]q
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[5]q
    conf_dir = %[6]q
`, in.path("containerd"), in.path("state"), in.path(containerd), pauseImage, cniPlugins, in.Dir),
		"pods.conflist": fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "pods", "plugins": [{
  "type": "ptp", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}
}]}`, in.path("addresses"), in.PodRange),
		// Disk and memory are those of the machine that runs the tests, so nothing is evicted because of them.
		"kubelet.yaml": fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%[1]s
cgroupDriver: cgroupfs
cgroupRoot: /%[2]s
failCgroupV1: false
failSwapOn: false
evictionHard: {}
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}}
authorization: {mode: Webhook}
podLogsDir: %[3]s
volumePluginDir: %[4]s
resolvConf: ""
`, in.path(containerd), in.Cgroup, in.path("logs"), in.path("plugins")),
	}
}
