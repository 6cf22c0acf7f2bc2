package vm

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/drivers/vm/internal/fields"
)

// spec is a valid provider specification with its defaults filled in.
type spec struct {
	pool             string
	cpus             int32
	memory           resource.Quantity
	rootDisk         resource.Quantity
	storageClassName string
	tags             map[string]string
	// cluster and role are named by two of the tags.
	cluster, role   string
	image           *vmv1alpha1.InitialImage
	kernelBoot      *vmv1alpha1.KernelBoot
	addresses       []string
	failureDomain   string
	migrateStrategy vmv1alpha1.MigrateStrategy
	hypervisorImage string
}

// size is a number of CPUs and a memory size with a name.
type size struct {
	cpus   int64
	memory string
}

var sizeTable = map[string]size{
	"xsmall": {1, "256Mi"},
	"small":  {1, "512Mi"},
	"medium": {2, "2Gi"},
	"large":  {4, "8Gi"},
	"xlarge": {8, "16Gi"},
}

const (
	mostCPUs       = 255
	mostRootFsSize = 65536 // GiB
	mebibyte       = 1 << 20
	leastMemory    = 32 * mebibyte
	mostMemory     = 16 << 40
	// defaultRootFsSize, in GiB, is enough for a guest that stores nothing.
	defaultRootFsSize = 1
	// longestCommandLine is the limit of Linux on x86.
	longestCommandLine = 2047
)

const specPath = "providerSpec"

// parseSpec reads a provider specification, and adds its problems to p.
func parseSpec(raw []byte, p *fields.Problems) spec {
	o := fields.Decode(raw, specPath, p)
	o.Ignore("apiVersion", "kind")
	var s spec
	s.pool = o.Named("vmPool", validation.IsDNS1123Label)
	if s.pool == "" && !o.HasProblem("vmPool") {
		o.Problem("vmPool", "is required: the namespace of the VirtualMachines")
	}
	s.readSize(o)
	s.readDisk(o)
	s.readTags(o)
	s.readBoot(o)
	s.addresses = readAddresses(o)
	s.failureDomain = o.Named(domainField, validation.IsValidLabelValue)
	s.migrateStrategy = vmv1alpha1.MigrateStrategy(o.OneOf("migrateStrategy", string(vmv1alpha1.MigrateLive), string(vmv1alpha1.MigrateCold)))
	s.hypervisorImage = o.Text("hypervisorImage")
	if strings.ContainsFunc(s.hypervisorImage, isBlank) {
		o.Problem("hypervisorImage", "must not contain blanks")
	}
	o.Finish()
	return s
}

func isBlank(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

func (s *spec) readSize(o *fields.Object) {
	name := o.Text("size")
	chosen, known := sizeTable[name]
	cpus, memory := o.Between("cpus", 1, mostCPUs), readMemory(o)
	switch {
	case known || o.HasProblem("size"):
	case name != "":
		o.Problem("size", "%q is none of %s", name, strings.Join(sizeNames(), ", "))
	case !o.Has("cpus") || !o.Has("memory"):
		o.Problem("size", "is required unless both cpus and memory are given")
	}
	if cpus == 0 {
		cpus = chosen.cpus
	}
	if memory == nil && known {
		memory = ptr.To(resource.MustParse(chosen.memory))
	}
	s.cpus, s.memory = int32(cpus), ptr.Deref(memory, resource.Quantity{})
}

// sizeNames lists the sizes, smallest first.
func sizeNames() []string {
	return slices.SortedFunc(maps.Keys(sizeTable), func(a, b string) int {
		smaller, larger := resource.MustParse(sizeTable[a].memory), resource.MustParse(sizeTable[b].memory)
		return smaller.Cmp(larger)
	})
}

// memoryPattern accepts fewer texts than a quantity, to find mistakes.
var memoryPattern = regexp.MustCompile(`^[0-9]{1,15}(\.[0-9]{1,3})?(Ki|Mi|Gi|Ti)?$`)

func readMemory(o *fields.Object) *resource.Quantity {
	text := o.Text("memory")
	if text == "" {
		return nil
	}
	if !memoryPattern.MatchString(text) {
		o.Problem("memory", `%q is no size of memory like "512Mi" or "2Gi"`, text)
		return nil
	}
	quantity := resource.MustParse(text)
	switch bytes := quantity.Value(); {
	case bytes < leastMemory || bytes > mostMemory:
		o.OutOfRange("memory", "%s is not between 32Mi and 16Ti", text)
	case bytes%mebibyte != 0:
		o.Problem("memory", "%s is not a multiple of 1Mi", text)
	default:
		return &quantity
	}
	return nil
}

func (s *spec) readDisk(o *fields.Object) {
	gigabytes := o.Between("rootFsSize", 1, mostRootFsSize)
	if gigabytes == 0 {
		gigabytes = defaultRootFsSize
	}
	s.rootDisk = *resource.NewQuantity(gigabytes<<30, resource.BinarySI)
	s.storageClassName = o.Named("storageClassName", validation.IsDNS1123Subdomain)
}

func (s *spec) readBoot(o *fields.Object) {
	image, kernel := o.Object("image"), o.Object("kernelBoot")
	if image == nil && kernel == nil {
		o.Problem("", "image or kernelBoot is required: something to boot from")
	}
	if image != nil {
		file := readFile(image)
		s.image = &vmv1alpha1.InitialImage{URL: file.URL, Checksum: file.Checksum}
		s.image.Format = vmv1alpha1.ImageFormat(image.OneOf("format", string(vmv1alpha1.FormatRaw), string(vmv1alpha1.FormatQCOW2)))
		image.Finish()
	}
	if kernel != nil {
		s.kernelBoot = readKernel(kernel)
	}
}

func readKernel(o *fields.Object) *vmv1alpha1.KernelBoot {
	boot := &vmv1alpha1.KernelBoot{CommandLine: o.Text("commandLine")}
	if strings.ContainsFunc(boot.CommandLine, unicode.IsControl) {
		o.Problem("commandLine", "must be one line, without control characters")
	}
	if len(boot.CommandLine) > longestCommandLine {
		o.Problem("commandLine", "is longer than %d bytes", longestCommandLine)
	}
	if kernel := o.Object("kernel"); kernel == nil {
		o.Problem("kernel", "is required")
	} else {
		boot.Kernel = readFile(kernel)
		kernel.Finish()
	}
	if initrd := o.Object("initrd"); initrd != nil {
		file := readFile(initrd)
		boot.Initrd = &file
		initrd.Finish()
	}
	o.Finish()
	return boot
}

var checksumPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// readFile reads the fields that all files have.
func readFile(o *fields.Object) vmv1alpha1.BootFile {
	file := vmv1alpha1.BootFile{URL: o.Text("url"), Checksum: o.Text("checksum")}
	switch {
	case file.URL != "":
		checkURL(o, file.URL)
	case !o.HasProblem("url"):
		o.Problem("url", "is required")
	}
	if file.Checksum != "" && !checksumPattern.MatchString(file.Checksum) {
		o.Problem("checksum", `must be "sha256:" and 64 lower-case hexadecimal digits`)
	}
	return file
}

// checkURL does not quote the URL, which may contain a password.
func checkURL(o *fields.Object, text string) {
	parsed, err := url.Parse(text)
	switch {
	case err != nil || strings.ContainsFunc(text, isBlank):
		o.Problem("url", "is not a URL")
	case parsed.User != nil:
		o.Problem("url", "must not hold a user or password: everybody who may see the VirtualMachine would see them")
	case parsed.Scheme == "file" && parsed.Host == "" && len(parsed.Path) > 1:
	case (parsed.Scheme == "http" || parsed.Scheme == "https") && parsed.Host != "":
	default:
		o.Problem("url", "must be like https://HOST/PATH, http://HOST/PATH or file:///PATH")
	}
}

func readAddresses(o *fields.Object) []string {
	texts := o.List("addresses")
	perVersion := map[bool]int{}
	for i, text := range texts {
		field := fmt.Sprintf("addresses[%d]", i)
		if o.HasProblem(field) {
			continue
		}
		address, err := netip.ParseAddr(text)
		if network, networkErr := netip.ParsePrefix(text); err != nil && networkErr == nil && network.IsSingleIP() {
			address, err = network.Addr(), nil
		}
		if err != nil || address.Zone() != "" || address.Is4In6() {
			o.Problem(field, "%q is no IP address", text)
			continue
		}
		if perVersion[address.Is4()]++; perVersion[address.Is4()] == 2 {
			o.Problem(field, "is a second address of its IP version")
		}
	}
	return texts
}
