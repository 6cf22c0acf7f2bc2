package release

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"debug/elf"
	"debug/macho"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// page is the directory with all files of a release page.
type page struct {
	t   *testing.T
	dir string
}

// newPage builds a release for these platforms, with the small guest only.
func newPage(t *testing.T, version string, platforms ...string) *page {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	keyFile := filepath.Join(dir, "release.key")
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), filepath.Join(root(t), "hack", "release.sh"), dir, version, image, image+"-hypervisor")
	command.Env = append(os.Environ(), "SIGNING_KEY="+keyFile, "RELEASE_PLATFORMS="+strings.Join(platforms, " "), "RELEASE_GUESTS=guest")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("hack/release.sh: %v\n%s", err, out)
	}
	return &page{t, filepath.Join(dir, version)}
}

// TestReleasePage_IsComplete uses only the files of the page, as their users would. Its parts share one page, because building
// it takes minutes.
func TestReleasePage_IsComplete(t *testing.T) {
	tier.All(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can change the root directory of a process")
	}
	p := newPage(t, release, "linux/amd64", "linux/arm64", "darwin/arm64")
	t.Run("installs without sources", p.installsWithoutSources)
	t.Run("has programs for other platforms", p.hasOtherPlatforms)
	t.Run("is pushed", p.isPushed)
	t.Run("is adopted", func(t *testing.T) { p.isAdopted(t, newPage(t, "v0.1.1", "linux/amd64")) })
}

func (p *page) installsWithoutSources(t *testing.T) {
	p = &page{t, p.dir}
	p.isSigned()
	p.namesEveryFile()
	p.krewNamesArchives()
	p.hasPackages()
	place := p.emptyRoot()
	// Both archives come from a mirror; QEMU is not needed.
	mirror := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(p.dir))))
	defer mirror.Close()
	out := p.run(place, "demo", "--exit", "--driver=sim", "--dir=/simulated", "--download-url="+mirror.URL, "--api-port=0", "--image-port=0")
	if !strings.Contains(out, "Downloading "+mirror.URL+"/v0.1.0/millwright-controlplane_0.1.0_linux_amd64.tar.gz") || !strings.Contains(out, "Ready nodes: 3 of 3") {
		t.Errorf("the simulated demo prints:\n%s", out)
	}
	// The guest is in the directory of the program.
	p.copy("millwright-guest_0.1.0_linux_amd64.tar.gz", place)
	begin := time.Now()
	out = p.run(place, "demo", "--exit", "--dir=/machines", "--download-url=http://127.0.0.1:1", "--api-port=0", "--image-port=0")
	if !strings.Contains(out, "Unpacking /millwright-guest_0.1.0_linux_amd64.tar.gz") || !strings.Contains(out, "Ready nodes: 3 of 3") {
		t.Errorf("the demo prints:\n%s", out)
	}
	t.Logf("the whole demo took %s:\n%s", time.Since(begin), out)
}

// isSigned verifies the release with the commands of docs/contributing/release.md.
func (p *page) isSigned() {
	p.t.Helper()
	verify := func() (string, error) {
		command := exec.CommandContext(p.t.Context(), "bash", "-c", `set -e
			openssl dgst -sha256 -verify millwright.pub -signature <(base64 --decode SHA256SUMS.sig) SHA256SUMS
			sha256sum --check --ignore-missing SHA256SUMS`)
		command.Dir = p.dir
		out, err := command.CombinedOutput()
		return string(out), err
	}
	if out, err := verify(); err != nil {
		p.t.Errorf("%v\n%s", err, out)
	}
	sums := filepath.Join(p.dir, "SHA256SUMS")
	content := p.read("SHA256SUMS")
	if err := os.WriteFile(sums, append([]byte("0"), content...), 0o644); err != nil {
		p.t.Fatal(err)
	}
	if out, err := verify(); err == nil {
		p.t.Errorf("a changed list of checksums is accepted:\n%s", out)
	}
	if err := os.WriteFile(sums, content, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p *page) read(name string) []byte {
	p.t.Helper()
	content, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return content
}

func (p *page) sum(name string) string {
	p.t.Helper()
	sum := sha256.Sum256(p.read(name))
	return hex.EncodeToString(sum[:])
}

// namesEveryFile checks the checksums that the list and the statement of provenance contain.
func (p *page) namesEveryFile() {
	p.t.Helper()
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		p.t.Fatal(err)
	}
	const provenance = "millwright_0.1.0_provenance.intoto.json"
	var statement struct {
		Subject []struct {
			Name   string
			Digest struct{ SHA256 string }
		}
	}
	if err := json.Unmarshal(p.read(provenance), &statement); err != nil {
		p.t.Fatal(err)
	}
	subjects, sums := map[string]string{}, map[string]string{}
	for _, subject := range statement.Subject {
		subjects[subject.Name] = subject.Digest.SHA256
	}
	for line := range strings.Lines(string(p.read("SHA256SUMS"))) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums[name] = sum
	}
	for _, entry := range entries {
		name := entry.Name()
		if slices.Contains([]string{"SHA256SUMS", "SHA256SUMS.sig", "millwright.pub"}, name) {
			continue
		}
		if sums[name] != p.sum(name) || name != provenance && subjects[name] != p.sum(name) {
			p.t.Errorf("%s: SHA256SUMS has %q, the provenance %q", name, sums[name], subjects[name])
		}
	}
}

// krewNamesArchives checks the checksums that krew's manifest contains.
func (p *page) krewNamesArchives() {
	p.t.Helper()
	var krew struct {
		Spec struct {
			Version   string
			Platforms []struct{ URI, SHA256, Bin string }
		}
	}
	if err := yaml.Unmarshal(p.read("millwright.krew.yaml"), &krew); err != nil {
		p.t.Fatal(err)
	}
	if krew.Spec.Version != release || len(krew.Spec.Platforms) != 3 {
		p.t.Fatalf("krew's manifest has %+v", krew)
	}
	for _, platform := range krew.Spec.Platforms {
		if name := filepath.Base(platform.URI); platform.SHA256 != p.sum(name) || filepath.Base(filepath.Dir(platform.URI)) != release {
			p.t.Errorf("krew's manifest has %+v", platform)
		}
	}
}

// hasOtherPlatforms checks the platforms in the headers of the programs, in the archives, and in the image.
func (p *page) hasOtherPlatforms(t *testing.T) {
	p = &page{t, p.dir}
	dir := t.TempDir()
	p.shell(`cd "$2" && for name in linux_arm64 darwin_arm64; do mkdir "$name" && tar -xzf "$1/millwright_0.1.0_$name.tar.gz" -C "$name"; done
		mkdir image && tar -xzf "$1/millwright-image_0.1.0.oci.tar.gz" -C image`, p.dir, dir)
	isFor(t, filepath.Join(dir, "linux_arm64", "millwright"), elf.EM_AARCH64)
	mac, err := macho.Open(filepath.Join(dir, "darwin_arm64", "millwright"))
	if err != nil {
		t.Fatal(err)
	}
	defer mac.Close() // nothing was written
	if mac.Cpu != macho.CpuArm64 || mac.Type != macho.TypeExec {
		t.Errorf("the program for darwin/arm64 is %s for %s", mac.Type, mac.Cpu)
	}
	if magic := p.read("millwright_0.1.0_arm64.deb")[:8]; string(magic) != "!<arch>\n" {
		t.Errorf("the package for arm64 begins with %q", magic)
	}
	for platform, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		isFor(t, programOf(t, filepath.Join(dir, "image"), platform), machine)
	}
}

// isFor checks for which architecture a program is.
func isFor(t *testing.T, path string, machine elf.Machine) {
	t.Helper()
	program, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close() // nothing was written
	if program.Machine != machine || program.Type != elf.ET_EXEC {
		t.Errorf("%s is %s for %s", path, program.Type, program.Machine)
	}
}

// programOf unpacks an image of a layout for one of its architectures, and returns the path of the program.
func programOf(t *testing.T, layout, architecture string) string {
	t.Helper()
	var all, index struct{ Manifests []descriptor }
	text, err := os.ReadFile(filepath.Join(layout, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	fromJSON(t, text, &all)
	fromJSON(t, blob(t, layout, all.Manifests[0], "application/vnd.oci.image.index.v1+json"), &index)
	i := slices.IndexFunc(index.Manifests, func(d descriptor) bool { return d.Platform.OS == "linux" && d.Platform.Architecture == architecture })
	if i < 0 {
		t.Fatalf("the image is not for %s", architecture)
	}
	var manifest struct{ Layers []descriptor }
	fromJSON(t, blob(t, layout, index.Manifests[i], "application/vnd.oci.image.manifest.v1+json"), &manifest)
	b := &builtImage{root: t.TempDir(), links: map[string]string{}}
	for _, layer := range manifest.Layers {
		b.unpack(t, blob(t, layout, layer, "application/vnd.oci.image.layer.v1.tar+gzip"))
	}
	return filepath.Join(b.root, "usr/bin/millwright")
}

// hasPackages checks the content of the Debian package. dpkg does not read the other one.
func (p *page) hasPackages() {
	p.t.Helper()
	listed, err := exec.CommandContext(p.t.Context(), "dpkg-deb", "--contents", filepath.Join(p.dir, "millwright_0.1.0_amd64.deb")).CombinedOutput()
	if err != nil {
		p.t.Fatalf("dpkg-deb: %v\n%s", err, listed)
	}
	for _, want := range []string{"./usr/bin/millwright\n", "./usr/bin/kubectl-millwright -> millwright\n", "./usr/share/bash-completion/completions/millwright\n", "./usr/share/man/man1/millwright.1\n"} {
		if !bytes.Contains(listed, []byte(want)) {
			p.t.Errorf("the package lacks %q:\n%s", want, listed)
		}
	}
	if magic := p.read("millwright_0.1.0_amd64.rpm")[:4]; !bytes.Equal(magic, []byte{0xed, 0xab, 0xee, 0xdb}) {
		p.t.Errorf("the RPM package begins with %x", magic)
	}
}

// emptyRoot returns a root directory that has the program and the files of the hypervisors' image, which are QEMU and
// its libraries, and neither Go nor a checkout.
func (p *page) emptyRoot() string {
	p.t.Helper()
	place := p.t.TempDir()
	p.shell(`tar -xzf "$1/millwright-hypervisor-image_0.1.0.oci.tar.gz" -C "$2" && cd "$2" &&
		for layer in blobs/sha256/*; do tar -xzf "$layer" --exclude=./dev -C "$2" 2>/dev/null || true; done && rm -r blobs index.json oci-layout`, p.dir, place)
	p.shell(`tar -xzf "$1/millwright_0.1.0_linux_amd64.tar.gz" -C "$2" && mkdir -p "$2/proc" "$2/dev" "$2/tmp" "$2/root" &&
		cp -a /dev/null /dev/zero /dev/random /dev/urandom "$2/dev/"`, p.dir, place)
	proc := filepath.Join(place, "proc")
	if err := syscall.Mount("proc", proc, "proc", 0, ""); err != nil {
		p.t.Fatalf("mounting /proc: %v", err)
	}
	p.t.Cleanup(func() {
		if err := syscall.Unmount(proc, syscall.MNT_DETACH); err != nil {
			p.t.Errorf("unmounting %s: %v", proc, err)
		}
	})
	return place
}

func (p *page) shell(script string, args ...string) {
	p.t.Helper()
	if out, err := exec.CommandContext(p.t.Context(), "bash", append([]string{"-euc", script, "test"}, args...)...).CombinedOutput(); err != nil {
		p.t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

func (p *page) copy(name, place string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(place, name), p.read(name), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// run runs the program in the root directory, and returns its output.
func (p *page) run(place string, args ...string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "/millwright", args...)
	command.Path = "/millwright"
	command.Dir = "/"
	command.Env = []string{"HOME=/root", "PATH=/usr/bin:/bin"}
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: place}
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	out, err := command.CombinedOutput()
	if err != nil {
		p.t.Fatalf("millwright %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
