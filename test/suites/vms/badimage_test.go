package vms

import (
	"bytes"
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Sizes of disks and images. Nothing boots from them: a firmware that waits forever is a guest that costs
// nothing.
const (
	diskSize  = 2 << 20
	imageSize = 1 << 20
)

// blankVM returns a VM with an empty disk.
func blankVM(name string) *vmv1alpha1.VirtualMachine {
	return &vmv1alpha1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: vmv1alpha1.VirtualMachineSpec{
			CPUs: 1, Memory: ptr.To(resource.MustParse("64Mi")),
			VolumeClaimTemplate: &vmv1alpha1.VolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceStorage: *resource.NewQuantity(diskSize, resource.BinarySI),
				}},
			}},
		},
	}
}

// imageServer serves images of all kinds.
type imageServer struct {
	*httptest.Server
	content []byte
	// good is the URL of a valid image.
	good string
}

func startImageServer(t *testing.T) *imageServer {
	t.Helper()
	s := &imageServer{content: bytes.Repeat([]byte("image--\x00"), imageSize/8)}
	serve := func(content []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			_, _ = w.Write(content) // the client may have disconnected
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/good", serve(s.content))
	mux.HandleFunc("/large", serve(make([]byte, 2*diskSize)))
	mux.HandleFunc("/backing", serve(backedQCOW2()))
	mux.HandleFunc("/login", serve([]byte("<!DOCTYPE html><title>Sign in</title>")))
	mux.Handle("/loop", http.RedirectHandler("/loop", http.StatusFound))
	mux.HandleFunc("/short", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(imageSize))
		_, _ = w.Write(s.content[:1000])
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	s.good = s.URL + "/good"
	return s
}

// backedQCOW2 is the header of a QCOW2 file of version 3 with the backing file /etc/passwd.
func backedQCOW2() []byte {
	file := make([]byte, 64<<10)
	copy(file, "QFI\xfb")
	for at, value := range map[int]uint32{4: 3, 12: 512, 16: 11, 20: 16, 100: 104} {
		binary.BigEndian.PutUint32(file[at:], value)
	}
	binary.BigEndian.PutUint64(file[24:], imageSize)
	copy(file[512:], "/etc/passwd")
	return file
}

func (s *imageServer) vm(name, url string) *vmv1alpha1.VirtualMachine {
	vm := blankVM(name)
	vm.Spec.InitialImage = &vmv1alpha1.InitialImage{URL: url}
	return vm
}

// badImage is a way in which an image can be invalid.
type badImage struct {
	name  string
	image vmv1alpha1.InitialImage
	// reason and words are expected in the status, in addition to the URL.
	reason string
	texts  []string
	// slow means that the image is retried for half a minute.
	slow bool
}

// bad contains all invalid images, the slow ones first.
func (s *imageServer) bad() []badImage {
	at := func(path string) vmv1alpha1.InitialImage { return vmv1alpha1.InitialImage{URL: s.URL + path} }
	wrong := at("/good")
	wrong.Checksum = "sha256:" + strings.Repeat("0", 64)
	return []badImage{
		{name: "truncated", image: at("/short"), slow: true, reason: vmpb.EndImageUnavailable, texts: []string{
			"the server closed the connection before the end of the content",
		}},
		// No process listens on port 1.
		{name: "refused", image: vmv1alpha1.InitialImage{URL: "http://127.0.0.1:1/disk"}, slow: true, reason: vmpb.EndImageUnavailable, texts: []string{
			"connection refused",
		}},
		{name: "not-found", image: at("/missing"), reason: vmpb.EndImageUnavailable, texts: []string{"the server returned 404 Not Found"}},
		{name: "redirects", image: at("/loop"), reason: vmpb.EndImageUnavailable, texts: []string{"the server redirected more than"}},
		{name: "checksum", image: wrong, reason: vmpb.EndImageRejected, texts: []string{"its checksum is sha256:", "expected " + wrong.Checksum}},
		{name: "large", image: at("/large"), reason: vmpb.EndImageRejected, texts: []string{
			strconv.Itoa(2 * diskSize), "but the disk has only " + strconv.Itoa(diskSize) + " bytes",
		}},
		{name: "login", image: at("/login"), reason: vmpb.EndImageRejected, texts: []string{"it is an HTML page", "does not require a login"}},
		{name: "backing-file", image: at("/backing"), reason: vmpb.EndImageRejected, texts: []string{"it has a backing file"}},
	}
}

func (b badImage) trial(images *imageServer) trial {
	return func(c *cluster) func(*cluster) {
		vm := blankVM(b.name)
		vm.Spec.InitialImage = &b.image
		c.create(vm)
		texts := append([]string{"image " + b.image.URL + ":"}, b.texts...)
		if b.slow {
			c.awaitMessage(b.name, "Preparing", append(texts, "retrying")...)
		}
		return func(c *cluster) {
			c.awaitMessageAndEvent(b.name, b.reason, texts...)
			c.wantNoDisk(b.name)
			c.change(b.name, func(spec *vmv1alpha1.VirtualMachineSpec) {
				spec.InitialImage = &vmv1alpha1.InitialImage{URL: images.good}
			})
			c.awaitRunning(b.name)
			disk, err := os.ReadFile(filepath.Join(c.volumeOf(b.name), "disk.img"))
			if err != nil {
				c.t.Fatal(err)
			}
			if len(disk) != diskSize || !bytes.Equal(disk[:imageSize], images.content) {
				c.t.Errorf("the disk of %d bytes does not begin with the image", len(disk))
			}
		}
	}
}
