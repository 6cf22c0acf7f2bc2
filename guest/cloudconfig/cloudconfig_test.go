package cloudconfig

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const secret = "0123456789abcdef"

var instance = Instance{ID: "6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21", Name: "vm-1"}

// golden returns the decoded content of a file in testdata.
func golden(t *testing.T, name string) Config {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	config, err := Parse(content, instance)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// described returns a transcript of files: their paths, owners and modes.
func described(files []File) string {
	var text strings.Builder
	for _, file := range files {
		way := " = "
		if file.Append {
			way = " + "
		}
		first, _, _ := strings.Cut(string(file.Content), "\n")
		text.WriteString(file.Mode.String() + " " + file.User + ":" + file.Group + " " + file.Path + way + first + "\n")
	}
	return text.String()
}

// TestParse_ClusterAPIControlPlane: all data for kubeadm init is decoded.
func TestParse_ClusterAPIControlPlane(t *testing.T) {
	config := golden(t, "init.yaml")
	want := `-rw-r----- root:root /etc/kubernetes/pki/ca.crt = -----BEGIN CERTIFICATE-----
-rw------- root:root /etc/kubernetes/pki/ca.key = -----BEGIN RSA PRIVATE KEY-----
-rw-r----- root:root /etc/kubernetes/pki/etcd/ca.crt = -----BEGIN CERTIFICATE-----
-rw------- root:root /etc/kubernetes/pki/etcd/ca.key = -----BEGIN RSA PRIVATE KEY-----
-rw-r----- root:root /etc/kubernetes/pki/front-proxy-ca.crt = -----BEGIN CERTIFICATE-----
-rw------- root:root /etc/kubernetes/pki/front-proxy-ca.key = -----BEGIN RSA PRIVATE KEY-----
-rw-r----- root:root /etc/kubernetes/pki/sa.pub = -----BEGIN CERTIFICATE-----
-rw------- root:root /etc/kubernetes/pki/sa.key = -----BEGIN RSA PRIVATE KEY-----
-rw------- root:root /etc/plain = one
-rw-r--r-- : /etc/base64 = hello guest
-rwxr-xr-x : /etc/both = hello guest
-rw-r--r-- : /etc/plain + three
-rw-r----- root:root /run/kubeadm/kubeadm.yaml = ---
-rw-r----- root:root /run/cluster-api/placeholder = This placeholder file is used to create the /run/cluster-api sub directory in a way that is compatible with both Linux and Windows (mkdir -p /run/cluster-api does not work with Windows)
`
	if diff := cmp.Diff(want, described(config.Files)); diff != "" {
		t.Errorf("files (-want +got)\n%s", diff)
	}
	const kubeadm = `---
apiVersion: kubeadm.k8s.io/v1beta4
clusterName: one
controlPlaneEndpoint: 10.77.0.2:6443
kind: ClusterConfiguration
kubernetesVersion: v1.37.2
networking:
  dnsDomain: cluster.local
  podSubnet: 10.78.0.0/16
  serviceSubnet: 10.96.0.0/12

---
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {}
nodeRegistration:
  kubeletExtraArgs:
  - name: provider-id
    value: millwright:///default/6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21
  name: 'vm-1'
  taints: null
`
	if diff := cmp.Diff(kubeadm, string(config.Files[12].Content)); diff != "" {
		t.Errorf("kubeadm's configuration (-want +got)\n%s", diff)
	}
	checkCommands(t, config, "kubeadm init --config /run/kubeadm/kubeadm.yaml  && echo success > /run/cluster-api/bootstrap-success.complete")
}

// checkCommands checks everything in a file of testdata except its files.
func checkCommands(t *testing.T, config Config, kubeadm string) {
	t.Helper()
	want := Config{
		BootCommands: "echo \"each boot\"\ndate\n",
		Commands:     "echo 'vm-1' >/etc/hostname\nprintf 'a: \"%s\"\\n' \"$HOME\"\n" + kubeadm + "\ntouch /tmp/done\n",
		Ignored:      []string{"ntp ignored: the guest's clock follows its host's", "users ignored: users cannot log in to the guest"},
	}
	config.Files = nil
	if diff := cmp.Diff(want, config); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestParse_ClusterAPIJoin: a worker has no keys of the cluster; another control plane has all of them.
func TestParse_ClusterAPIJoin(t *testing.T) {
	for name, files := range map[string]int{"join.yaml": 6, "join-control-plane.yaml": 14} {
		config := golden(t, name)
		if len(config.Files) != files {
			t.Errorf("%s: got %d files\n%s", name, len(config.Files), described(config.Files))
		}
		joining := string(config.Files[files-2].Content)
		if !strings.Contains(joining, "value: millwright:///default/"+instance.ID+"\n") || !strings.Contains(joining, "name: 'vm-1'\n") {
			t.Errorf("%s: got kubeadm's configuration\n%s", name, joining)
		}
		checkCommands(t, config, "kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml  && echo success > /run/cluster-api/bootstrap-success.complete")
	}
}

// TestParse_RejectsClusterAPIDisks: the data would be on the wrong disk.
func TestParse_RejectsClusterAPIDisks(t *testing.T) {
	content, err := os.ReadFile(filepath.Join("testdata", "disks.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var wrong *Error
	if _, err := Parse(content, instance); !errors.As(err, &wrong) || wrong.Where != "disk_setup" {
		t.Errorf("Parse = %v, want an error about disk_setup", err)
	}
}

func TestParse(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want Config
	}{
		"nothing":            {"", Config{}},
		"empty fields":       {"disk_setup: {}\nmounts: []\npackages:\nswap: null\n", Config{}},
		"cloud-init only":    {"growpart: {mode: auto}\npreserve_hostname: true\nfinal_message: x\n", Config{}},
		"the machine's name": {"hostname: vm-1\n", Config{}},
		"an unknown field":   {"color: red\n", Config{Ignored: []string{"color ignored: not supported by the guest"}}},
		"arguments":          {"runcmd:\n- [echo, \"it's\", $HOME]\n-\n- date\n", Config{Commands: "'echo' 'it'\\''s' '$HOME'\ndate\n"}},
		"scalars as arguments": {
			"runcmd:\n- [sleep, 5, 1.5, true, no, null, 0755]\n", Config{Commands: "'sleep' '5' '1.5' 'True' 'False' 'None' '493'\n"},
		},
		"a number as permissions": {
			"write_files: [{path: /a, permissions: 0600}]\n", Config{Files: []File{{Path: "/a", Mode: 0o600, Content: []byte{}}}},
		},
		"special permissions": {
			"write_files: [{path: /a//b/../c, permissions: '1777'}]\n",
			Config{Files: []File{{Path: "/a/c", Mode: fs.ModeSticky | 0o777, Content: []byte{}}}},
		},
		"deferred": {
			"write_files: [{path: /a, defer: true}, {path: /b, owner: daemon}]\n",
			Config{Files: []File{{Path: "/b", User: "daemon", Mode: 0o644, Content: []byte{}}, {Path: "/a", Mode: 0o644, Content: []byte{}}}},
		},
	} {
		got, err := Parse([]byte("#cloud-config\n"+test.text), instance)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

func TestParse_NamesInvalidField(t *testing.T) {
	for name, test := range map[string]struct{ text, where string }{
		"not a mapping":     {"- " + secret + "\n", "document"},
		"not YAML":          {"a: b\n\tc: " + secret + "\n", "line 3"},
		"file systems":      {"fs_setup: [{label: a}]\n", "fs_setup"},
		"packages":          {"packages: [" + secret + "]\n", "packages"},
		"another name":      {"hostname: vm-2\n", "hostname"},
		"commands":          {"runcmd: " + secret + "\n", "runcmd"},
		"a mapping":         {"bootcmd: [date, {a: " + secret + "}]\n", "bootcmd[1]"},
		"a number":          {"runcmd: [date, 5]\n", "runcmd[1]"},
		"a nested list":     {"runcmd: [[echo, [" + secret + "]]]\n", "runcmd[0]"},
		"not a list":        {"write_files: {path: /a}\n", "write_files"},
		"not a file":        {"write_files: [" + secret + "]\n", "write_files[0]"},
		"a type":            {"write_files: [{path: /a, append: " + secret + "}]\n", "write_files[0]"},
		"a relative path":   {"write_files: [{path: /a}, {path: a}]\n", "write_files[1].path"},
		"the root":          {"write_files: [{path: /..}]\n", "write_files[0].path"},
		"no path":           {"write_files: [{content: " + secret + "}]\n", "write_files[0].path"},
		"permissions":       {"write_files: [{path: /a, permissions: rw}]\n", "write_files[0].permissions"},
		"large permissions": {"write_files: [{path: /a, permissions: '10000'}]\n", "write_files[0].permissions"},
		"an encoding":       {"write_files: [{path: /a, encoding: rot13, content: " + secret + "}]\n", "write_files[0].content"},
		"not base64":        {"write_files: [{path: /a, encoding: b64, content: '" + secret + "!'}]\n", "write_files[0].content"},
		"not gzip":          {"write_files: [{path: /a, encoding: gz+b64, content: " + secret + "}]\n", "write_files[0].content"},
		"truncated gzip":    {"write_files: [{path: /a, encoding: gz+b64, content: H4sIAAAAAAAAA8tIzcnJV0gvTS0=}]\n", "write_files[0].content"},
		"a source":          {"write_files: [{path: /a, source: {uri: 'https://" + secret + "'}}]\n", "write_files[0].source"},
	} {
		t.Run(name, func(t *testing.T) { wantError(t, "#cloud-config\n"+test.text, test.where) })
	}
}

// wantError expects an error at the given location that contains no secret.
func wantError(t *testing.T, text, where string) {
	t.Helper()
	_, err := Parse([]byte(text), instance)
	var wrong *Error
	if !errors.As(err, &wrong) || wrong.Where != where {
		t.Fatalf("Parse = %v, want an error about %s", err, where)
	}
	if strings.Contains(err.Error(), secret) {
		t.Errorf("the error contains a secret: %v", err)
	}
}

func TestParse_Templates(t *testing.T) {
	const begin = "## template: jinja\n#cloud-config\nruncmd:\n"
	for text, want := range map[string]string{
		"- echo {{ ds.meta_data.instance_id }} {{v1.local_hostname}}\n": "echo " + instance.ID + " vm-1\n",
		"- echo{# a comment\n with two lines #}\n more\n":               "echo more\n",
		"- echo '{% raw %}{{ name }} {% if %}{% endraw %}'\n":           "echo '{{ name }} {% if %}'\n",
		"- echo '{%- raw -%}  {{ a }}  {%- endraw -%}'\n":               "echo '{{ a }}'\n",
		"- echo } }} %} '#}'\n":                                         "echo } }} %} '#}'\n",
	} {
		got, err := Parse([]byte(begin+text), instance)
		if err != nil || got.Commands != want {
			t.Errorf("%q = %q, %v, want %q", text, got.Commands, err, want)
		}
	}
	for text, where := range map[string]string{
		"- echo\n- {{ ds.meta_data.local_hostnam }}\n": "line 5",
		"- {{ " + secret + " }}\n":                     "line 4",
		"- {% if " + secret + " %}a{% endif %}\n":      "line 4",
		"- {{ instance_id | upper }}\n":                "line 4",
		"- {{ " + secret + "\n":                        "line 4",
		"- {% raw %}" + secret + "\n":                  "line 4",
	} {
		wantError(t, begin+text, where)
	}
	wantError(t, "\n\n"+begin+"- echo\n- {{ instance }}\n", "line 7")
	// Without the template line, braces are ordinary text.
	got, err := Parse([]byte("#cloud-config\nruncmd: ['echo {{ a }}']\n"), instance)
	if err != nil || got.Commands != "echo {{ a }}\n" {
		t.Errorf("without a template: got %q, %v", got.Commands, err)
	}
}

// compressed returns the text compressed with gzip.
func compressed(text string) string {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return out.String()
}

// TestIs: cloud-init accepts and rejects the same headers (type_from_starts_with in cloudinit/handlers).
func TestIs(t *testing.T) {
	for text, want := range map[string]bool{
		"#cloud-config": true, "#cloud-config \r\na: b": true, "## template: jinja\n#cloud-config\n": true, "##Template:Jinja\n#cloud-config\n": true,
		"\n \r\n#cloud-config\n": true, "#Cloud-Config\n": true, "#cloud-config # of the pool\na: b": true, "#cloud-config-ish\n": true,
		"\n## template: jinja\n\n#CLOUD-CONFIG\n": true, compressed("#cloud-config\na: b\n"): true,
		"": false, "# a comment\n#cloud-config\n": false, "#cloud-config-archive\n": false, "#cloud-config-jsonp\n": false, compressed("#!/bin/sh\n"): false, "## template: jinja\n#!/bin/sh\n": false, "## template: basic\n#cloud-config\n": false,
	} {
		if got := Is([]byte(text)); got != want {
			t.Errorf("Is(%q) = %t", text, got)
		}
		if _, err := Parse([]byte(text), instance); errors.Is(err, ErrForeign) == want {
			t.Errorf("Parse(%q) = %v", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	names, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Add([]byte("## template: jinja\n#cloud-config\nwrite_files: [{path: /a, content: '{% raw %}{{ a }}{%- endraw %}{# b #}', permissions: 0644}]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		config, err := Parse(text, instance)
		if wrong := (*Error)(nil); err != nil && !errors.Is(err, ErrForeign) && !errors.As(err, &wrong) {
			t.Errorf("%v is neither ErrForeign nor an *Error", err)
		}
		for _, file := range config.Files {
			if !filepath.IsAbs(file.Path) || filepath.Clean(file.Path) != file.Path || file.Mode.Type()&fs.ModeDir != 0 {
				t.Errorf("got an invalid file: %+v", file)
			}
		}
	})
}
