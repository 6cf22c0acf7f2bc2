package hostrunner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// TestPod_MountsStayInItsDirectory checks that mount paths with "..", which the API server admits, change no file
// outside the Pod's directory, neither when the Pod starts nor when it is removed.
func TestPod_MountsStayInItsDirectory(t *testing.T) {
	b := newTestHost(t)
	paths := map[string]string{"above": "/../../../above", "dots": "/x/../../../../dots", "made": "/../../../new/x"}
	for name, path := range paths {
		if err := os.WriteFile(filepath.Join(b.config.Dir, name), []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		b.pod(name, "run", withVolume("data", path, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	}
	b.start()
	for name, path := range paths {
		refused := b.await(name, corev1.PodFailed)
		if refused.Status.Reason != ReasonUnsupported || !strings.Contains(refused.Status.Message, path) {
			t.Errorf("%s: the status is %+v", path, refused.Status)
		}
		b.delete(name, metav1.DeleteOptions{})
		b.awaitGone(refused)
		if content, err := os.ReadFile(filepath.Join(b.config.Dir, name)); err != nil || string(content) != "precious" {
			t.Errorf("%s: the file outside holds %q (%v)", path, content, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(b.config.Dir, "new")); !os.IsNotExist(err) {
		t.Errorf("a directory was made outside: %v", err)
	}
}

// TestPod_MessageOfCompromisedProcess checks that a compromised hypervisor cannot make the host runner publish a file of
// the host, or wait indefinitely.
func TestPod_MessageOfCompromisedProcess(t *testing.T) {
	b := newTestHost(t)
	b.start()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("a secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, does := range map[string]string{"absolute": "link " + secret, "relative": "link ../../../../../../../../../.." + secret, "pipe": "pipe"} {
		b.pod(name, does)
		ended := b.await(name, corev1.PodFailed)
		if got := ended.Status.ContainerStatuses[0].State.Terminated.Message; got != "" {
			t.Errorf("%s: the message is %q", name, got)
		}
	}
}

// TestPod_LayoutIgnoresSymlinks checks that symlinks that a process left in its Pod's directory are not followed.
func TestPod_LayoutIgnoresSymlinks(t *testing.T) {
	outside := t.TempDir()
	for _, planted := range []string{"root", "root/etc", "volumes", "volumes/data"} {
		t.Run(planted, func(t *testing.T) {
			f := podDir(t.TempDir())
			link := filepath.Join(string(f), planted)
			if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(outside, link); err != nil {
				t.Fatal(err)
			}
			files, err := f.create()
			if err != nil {
				t.Fatal(err)
			}
			defer files.Close()
			path, err := files.makeVolume("data")
			if err == nil {
				container := &corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/etc/data"}}}
				err = files.layOut(container, map[string]string{"data": path})
			}
			if err == nil {
				t.Error("the link was followed")
			}
			if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
				t.Errorf("outside there is %v (%v)", left, err)
			}
		})
	}
}

// TestPod_VolumesReplacedBySymlinksAreNotWritten checks that a token that is renewed, or another file of a volume, is not
// written to another directory if the process has replaced the directory of the volume.
func TestPod_VolumesReplacedBySymlinksAreNotWritten(t *testing.T) {
	outside := t.TempDir()
	for _, replaced := range []string{"volumes", "volumes/token"} {
		t.Run(replaced, func(t *testing.T) {
			f := podDir(t.TempDir())
			files, err := f.create()
			if err != nil {
				t.Fatal(err)
			}
			defer files.Close()
			if _, err := files.makeVolume("token"); err != nil {
				t.Fatal(err)
			}
			target := filepath.Join(outside, strings.TrimPrefix(replaced, "volumes"))
			if err := os.MkdirAll(filepath.Join(outside, "token"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(f.path(replaced)); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(target, f.path(replaced)); err != nil {
				t.Fatal(err)
			}
			if err := files.writeTo("token", "token", []byte("secret")); err == nil {
				t.Error("the link was followed")
			}
			if left, err := os.ReadDir(filepath.Join(outside, "token")); err != nil || len(left) != 0 {
				t.Errorf("outside there is %v (%v)", left, err)
			}
		})
	}
}

// TestPod_LayoutStaysInOpenedDirectory checks that everything is created in the directory that was opened, even if its path
// leads to another one meanwhile.
func TestPod_LayoutStaysInOpenedDirectory(t *testing.T) {
	dir := t.TempDir()
	f, moved, outside := podDir(filepath.Join(dir, "pod")), podDir(filepath.Join(dir, "moved")), podDir(filepath.Join(dir, "outside"))
	files, err := f.create()
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	if err := os.MkdirAll(outside.root(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(string(f), string(moved)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(string(outside), string(f)); err != nil {
		t.Fatal(err)
	}
	container := &corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}
	if err := files.layOut(container, map[string]string{"data": dir}); err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(filepath.Join(moved.root(), "data")); err != nil || target != dir {
		t.Errorf("the link leads to %q (%v), want %q", target, err, dir)
	}
	if left, err := os.ReadDir(outside.root()); err != nil || len(left) != 0 {
		t.Errorf("outside there is %v (%v)", left, err)
	}
}

// TestPod_LogRotationIgnoresSymlinks checks that a symlink with the name of the old log is not followed.
func TestPod_LogRotationIgnoresSymlinks(t *testing.T) {
	dir := t.TempDir()
	secret, path := filepath.Join(dir, "secret"), filepath.Join(dir, "pod", "log")
	for _, file := range []string{secret, path} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("0123456789"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	require := func(file, want string) {
		t.Helper()
		if content, err := os.ReadFile(file); err != nil || string(content) != want {
			t.Errorf("%s holds %q (%v), want %q", filepath.Base(file), content, err, want)
		}
	}
	if err := os.Symlink(secret, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := rotate(path, 5); err != nil {
		t.Error(err)
	}
	require(secret, "0123456789")
	require(path+".1", "56789")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, path); err != nil {
		t.Fatal(err)
	}
	if err := rotate(path, 5); err == nil {
		t.Error("a link as log was followed")
	}
	require(secret, "0123456789")
}

// TestHost_SetsImagePolicy checks that the host, not the author of the Pod, determines which files images may refer
// to.
func TestHost_SetsImagePolicy(t *testing.T) {
	pod := supported()
	pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env,
		corev1.EnvVar{Name: vmpb.EnvImages, Value: "/"}, corev1.EnvVar{Name: vmpb.EnvImageServers, Value: "127.0.0.1"})
	for _, want := range []Config{{}, {Images: "/images", ImageServers: "127.0.0.1:80"}} {
		env, err := environment(pod, "/root", want)
		if err != nil {
			t.Fatal(err)
		}
		last := map[string]string{} // the last value of a name takes effect
		for _, variable := range env {
			name, value, _ := strings.Cut(variable, "=")
			last[name] = value
		}
		if last[vmpb.EnvImages] != want.Images || last[vmpb.EnvImageServers] != want.ImageServers {
			t.Errorf("the environment has %q and %q, want %q and %q",
				last[vmpb.EnvImages], last[vmpb.EnvImageServers], want.Images, want.ImageServers)
		}
	}
}

// TestHost_SetsNetworkPolicy checks that the host, not the author of the Pod, determines which networks guests reach.
func TestHost_SetsNetworkPolicy(t *testing.T) {
	pod := supported()
	pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env,
		corev1.EnvVar{Name: vmpb.EnvSwitch, Value: "/other"}, corev1.EnvVar{Name: vmpb.EnvOutside, Value: "allowed"})
	for _, test := range []struct {
		config  Config
		outside string
	}{{Config{}, ""}, {Config{Switch: "/switch", NoOutside: true}, vmpb.OutsideRefused}} {
		env, err := environment(pod, "/root", test.config)
		if err != nil {
			t.Fatal(err)
		}
		last := map[string]string{} // the last value of a name takes effect
		for _, variable := range env {
			name, value, _ := strings.Cut(variable, "=")
			last[name] = value
		}
		if last[vmpb.EnvSwitch] != test.config.Switch || last[vmpb.EnvOutside] != test.outside {
			t.Errorf("the environment has %q and %q, want %q and %q",
				last[vmpb.EnvSwitch], last[vmpb.EnvOutside], test.config.Switch, test.outside)
		}
	}
}

// TestPod_PathsStayInItsDirectory checks that neither a Pod's UID nor a path in its container, which an object's status may
// contain, leads outside the directories of Pods.
func TestPod_PathsStayInItsDirectory(t *testing.T) {
	for _, uid := range []types.UID{"..", "../..", "a/b", "", ".", "/", "8a6e0804-2bd0-4672-b79d-d97027f9071a"} {
		for _, path := range []string{"/run/vm.sock", "../../x", "/../../../x", ""} {
			got := ContainerPath("/host", uid, path)
			rest, found := strings.CutPrefix(got, "/host/pods/")
			if parts := strings.SplitN(rest, "/", 3); !found || len(parts) < 2 || parts[1] != rootDir || filepath.Clean(got) != got {
				t.Errorf("%q in Pod %q is %s", path, uid, got)
			}
		}
	}
}
