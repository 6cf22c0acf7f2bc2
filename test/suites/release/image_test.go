package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestImage_RunsAsDeployed checks that the Deployment of the release refers to the image that "make image" builds, and that the
// image runs as the Deployment specifies.
func TestImage_RunsAsDeployed(t *testing.T) {
	tier.All(t)
	p := newPlace(t)
	layouts := p.images("image", "again")
	bills := p.bills()
	built, again := readImage(t, layouts[0]), readImage(t, layouts[1])
	t.Run("fits the Deployment", func(t *testing.T) {
		deployment := decode[appsv1.Deployment](t, only(t, fixture.Objects(t, p.read(contract(), "infrastructure-components.yaml")), "Deployment"))
		built.fits(t, &deployment.Spec.Template.Spec)
	})
	t.Run("holds what it takes and nothing else", built.holds)
	t.Run("same when built again", func(t *testing.T) {
		if again.digest != built.digest {
			t.Errorf("the image is now %s, and was %s; did sources change meanwhile?", again.digest, built.digest)
		}
	})
	t.Run("with a bill of materials", func(t *testing.T) { sameBills(t, layouts[0]+".sbom", layouts[1]+".sbom", bills) })
	t.Run("runs", func(t *testing.T) {
		needsRoot(t)
		e := env.New(t, env.WithOwn())
		if err := controlplane.InstallCRDs(t.Context(), e.Admin, os.DirFS("testdata/cert-manager")); err != nil {
			t.Fatal(err)
		}
		p.init(e.Cluster, contract())
		built.runs(t, e.Cluster)
	})
}

// TestRelease_WritesSBOMs checks that there are software bills of materials for the platforms for which "make
// image" builds images.
func TestRelease_WritesSBOMs(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for platforms, want := range map[string]string{"": "linux/" + runtime.GOARCH, "linux/amd64 linux/arm64": "linux/amd64 linux/arm64"} {
		command := exec.CommandContext(t.Context(), "make", "--no-print-directory", "--dry-run", "clusterctl", "VERSION="+release, "RELEASE_IMAGE="+image, "IMAGE_PLATFORMS="+platforms)
		command.Dir = root(t)
		out, err := command.CombinedOutput()
		if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), fmt.Sprintf("hack/clusterctl.sh bin/clusterctl '%s' '%s' %s", release, image, want)) {
			t.Errorf("with the platforms %q: %v\n%s", platforms, err, out)
		}
	}
}

// sameBills compares the software bills of materials of two builds of the same sources.
func sameBills(t *testing.T, directories ...string) {
	t.Helper()
	var bills []string
	for _, directory := range directories {
		text, err := os.ReadFile(filepath.Join(directory, "linux-"+runtime.GOARCH+".cdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		bills = append(bills, string(text))
	}
	for _, other := range bills[1:] {
		if other != bills[0] {
			t.Errorf("the bills are different:\n%s", cmp.Diff(bills[0], other))
		}
	}
	for _, part := range []string{`"bomFormat": "CycloneDX"`, "pkg:golang/github.com/millwright-dev/millwright@" + release, "pkg:golang/google.golang.org/grpc@v", "pkg:golang/std@"} {
		if !strings.Contains(bills[0], part) {
			t.Errorf("the bill lacks %s", part)
		}
	}
}

// descriptor is a descriptor of the OCI image specification.
type descriptor struct {
	MediaType   string
	Digest      string
	Size        int64
	Annotations map[string]string
	Platform    struct{ OS, Architecture string }
}

// builtImage is an image that was read from its layout.
type builtImage struct {
	digest string // digest of its index
	named  map[string]string
	config struct {
		OS, Architecture string
		Config           struct {
			User            string
			Entrypoint, Env []string
			Labels          map[string]string
		}
	}
	// root is the directory to which it is unpacked. files are its files, without directories and symlinks, by
	// their resolved paths.
	root  string
	files []string
	links map[string]string
}

// readImage reads a layout with one image for one platform, and unpacks it.
func readImage(t *testing.T, dir string) *builtImage {
	t.Helper()
	var layout, index struct {
		MediaType string
		Manifests []descriptor
	}
	text, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	fromJSON(t, text, &layout)
	if len(layout.Manifests) != 1 {
		t.Fatalf("the layout has %d images", len(layout.Manifests))
	}
	b := &builtImage{root: t.TempDir(), links: map[string]string{}, digest: layout.Manifests[0].Digest, named: layout.Manifests[0].Annotations}
	fromJSON(t, blob(t, dir, layout.Manifests[0], "application/vnd.oci.image.index.v1+json"), &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Platform.OS != "linux" || index.Manifests[0].Platform.Architecture != runtime.GOARCH {
		t.Fatalf("the index has %+v", index.Manifests)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	fromJSON(t, blob(t, dir, index.Manifests[0], "application/vnd.oci.image.manifest.v1+json"), &manifest)
	fromJSON(t, blob(t, dir, manifest.Config, "application/vnd.oci.image.config.v1+json"), &b.config)
	for _, layer := range manifest.Layers {
		b.unpack(t, blob(t, dir, layer, "application/vnd.oci.image.layer.v1.tar+gzip"))
	}
	return b
}

// blob reads a blob of a layout, and checks its descriptor.
func blob(t *testing.T, dir string, d descriptor, mediaType string) []byte {
	t.Helper()
	algorithm, sum, _ := strings.Cut(d.Digest, ":")
	content, err := os.ReadFile(filepath.Join(dir, "blobs", algorithm, sum))
	if err != nil {
		t.Fatal(err)
	}
	actual := sha256.Sum256(content)
	if algorithm != "sha256" || sum != hex.EncodeToString(actual[:]) || d.Size != int64(len(content)) || d.MediaType != mediaType {
		t.Fatalf("a %s of %d bytes is described as %+v", mediaType, len(content), d)
	}
	return content
}

func fromJSON(t *testing.T, text []byte, value any) {
	t.Helper()
	if err := json.Unmarshal(text, value); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

// unpack adds a layer's files to those of the lower layers.
func (b *builtImage) unpack(t *testing.T, layer []byte) {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewReader(unzipped)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Gid != 0 || !filepath.IsLocal(header.Name) {
			t.Fatalf("the layer has %+v", header)
		}
		b.add(t, header, archive)
	}
}

func (b *builtImage) add(t *testing.T, header *tar.Header, content io.Reader) {
	t.Helper()
	path := filepath.Join(b.root, header.Name)
	switch header.Typeflag {
	case tar.TypeDir:
		if err := os.MkdirAll(path, header.FileInfo().Mode()); err != nil {
			t.Fatal(err)
		}
	case tar.TypeReg:
		b.files = append(b.files, header.Name)
		text, err := io.ReadAll(content)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, header.FileInfo().Mode()); err != nil {
			t.Fatal(err)
		}
	case tar.TypeSymlink:
		b.links[header.Name] = header.Linkname
	default:
		t.Fatalf("the layer has %+v", header)
	}
}

// program returns the path of its entry point outside the container.
func (b *builtImage) program(t *testing.T) string {
	t.Helper()
	if len(b.config.Config.Entrypoint) != 1 {
		t.Fatalf("the entry point is %q", b.config.Config.Entrypoint)
	}
	return filepath.Join(b.root, b.config.Config.Entrypoint[0])
}

// fits checks the image's configuration against the requirements of the Deployment.
func (b *builtImage) fits(t *testing.T, pod *corev1.PodSpec) {
	container, secured := pod.Containers[0], pod.SecurityContext
	if container.Command != nil {
		t.Errorf("instead of the entry point, the Deployment wants %q", container.Command)
	}
	if user := fmt.Sprintf("%d:%d", ptr.Deref(secured.RunAsUser, 0), ptr.Deref(secured.RunAsGroup, 0)); b.config.Config.User != user {
		t.Errorf("the user is %s, and %s for the Deployment", b.config.Config.User, user)
	}
	named := map[string]string{"org.opencontainers.image.ref.name": release, "io.containerd.image.name": container.Image}
	if diff := cmp.Diff(named, b.named); diff != "" {
		t.Errorf("names (-of the Deployment +of the image):\n%s", diff)
	}
	if version := b.config.Config.Labels["org.opencontainers.image.version"]; version != release {
		t.Errorf("the image reports version %s", version)
	}
	out, err := exec.CommandContext(t.Context(), b.program(t), "version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), release) {
		t.Errorf("the program reports %s, %v", out, err)
	}
}

// holds checks the files: a statically linked program, and the root certificates.
func (b *builtImage) holds(t *testing.T) {
	const roots = "etc/ssl/certs/ca-certificates.crt"
	if want := []string{roots, "usr/bin/millwright"}; !slices.Equal(b.files, want) {
		t.Errorf("the image holds %q, want %q", b.files, want)
	}
	names := map[string]string{"machine-controller": "/usr/bin/millwright", "machine-controller-manager": "/usr/bin/millwright"}
	if diff := cmp.Diff(names, b.links); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	program, err := elf.Open(b.program(t))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close() // nothing was written
	if slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Error("the program needs libraries")
	}
	text, err := os.ReadFile(filepath.Join(b.root, roots))
	if err != nil {
		t.Fatal(err)
	}
	certificates := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		certificates++
	}
	if certificates < 100 {
		t.Errorf("there are %d root certificates", certificates)
	}
}

// runs starts the container of the installed Deployment, and stops it.
func (b *builtImage) runs(t *testing.T, c *env.Cluster) {
	m := installed(t, c)
	inside := b.containerOf(m)
	m.start(inside.command(t))
	m.isReady()
	inside.isConfined(t, m.process.PID())
	m.leads()
	m.refusesChangesOfTemplates() // it reads its certificate
	m.process.Stop()
}

// serviceAccount is the directory of a Pod's service account.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// containerOf creates the container that a kubelet would create for the Pod.
func (b *builtImage) containerOf(m *manager) *container {
	m.t.Helper()
	in := m.pod.Containers[0]
	server, err := url.Parse(m.cluster.Admin.Host)
	if err != nil {
		m.t.Fatal(err)
	}
	secured := m.pod.SecurityContext
	want := &corev1.SecurityContext{
		ReadOnlyRootFilesystem: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	if diff := cmp.Diff(want, in.SecurityContext); diff != "" {
		m.t.Errorf("this container differs from the Deployment (-this +that):\n%s", diff)
	}
	c := &container{
		Root: b.root, UID: int(ptr.Deref(secured.RunAsUser, 0)), GID: int(ptr.Deref(secured.RunAsGroup, 0)),
		Mounts: map[string]string{},
		Args:   append(slices.Clone(b.config.Config.Entrypoint), m.args()...),
		Env:    append(slices.Clone(b.config.Config.Env), "KUBERNETES_SERVICE_HOST="+server.Hostname(), "KUBERNETES_SERVICE_PORT="+server.Port(), "POD_NAMESPACE="+m.namespace),
	}
	for _, mount := range in.VolumeMounts {
		c.Mounts[mount.MountPath] = m.certificates // there is no other volume
	}
	c.Mounts[serviceAccount] = m.account(c.UID)
	return c
}

// account writes the files of a Pod's service account. The token is readable by one user only.
func (m *manager) account(uid int) string {
	m.t.Helper()
	dir := m.t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(m.token()), 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Chown(token, uid, -1); err != nil {
		m.t.Fatal(err)
	}
	for name, content := range map[string][]byte{"ca.crt": m.cluster.Admin.CAData, "namespace": []byte(m.namespace)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			m.t.Fatal(err)
		}
	}
	return dir
}
