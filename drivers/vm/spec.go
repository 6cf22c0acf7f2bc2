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
	// defaultRootFsSize is room enough for the disk of a guest that keeps nothing.
	defaultRootFsSize = 1
	// longestCommandLine is the limit of Linux on x86.
	longestCommandLine = 2047
)

const specPath = "providerSpec"

// parseSpec reads a provider specification, and notes all that is wrong with it.
func parseSpec(raw []byte, p *problems) spec {
	o := decode(raw, specPath, p)
	for _, ignored := range []string{"apiVersion", "kind"} {
		o.get(ignored)
	}
	var s spec
	s.pool = o.named("vmPool", validation.IsDNS1123Label)
	if s.pool == "" && !o.noted("vmPool") {
		p.add(o.at("vmPool"), "is required: the namespace of the VirtualMachines")
	}
	s.readSize(o)
	s.readDisk(o)
	s.readTags(o)
	s.readBoot(o)
	s.addresses = readAddresses(o)
	s.failureDomain = o.named(domainField, validation.IsValidLabelValue)
	s.migrateStrategy = vmv1alpha1.MigrateStrategy(o.oneOf("migrateStrategy", string(vmv1alpha1.MigrateLive), string(vmv1alpha1.MigrateCold)))
	s.hypervisorImage = o.text("hypervisorImage")
	if strings.ContainsFunc(s.hypervisorImage, isBlank) {
		p.add(o.at("hypervisorImage"), "must not contain blanks")
	}
	o.finish()
	return s
}

func isBlank(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

// named returns a text that a function of package validation accepts.
func (o *object) named(name string, check func(string) []string) string {
	text := o.text(name)
	if text == "" {
		return ""
	}
	if wrong := check(text); len(wrong) > 0 {
		o.problems.add(o.at(name), "%s", strings.Join(wrong, ", "))
		return ""
	}
	return text
}

// oneOf returns one of some texts, or none.
func (o *object) oneOf(name string, texts ...string) string {
	text := o.text(name)
	if text == "" || slices.Contains(texts, text) {
		return text
	}
	o.problems.add(o.at(name), "%q is none of %s", text, strings.Join(texts, ", "))
	return ""
}

func (s *spec) readSize(o *object) {
	name := o.text("size")
	chosen, known := sizeTable[name]
	cpus, memory := o.between("cpus", 1, mostCPUs), readMemory(o)
	switch {
	case known || o.noted("size"):
	case name != "":
		o.problems.add(o.at("size"), "%q is none of %s", name, strings.Join(sizeNames(), ", "))
	case o.values["cpus"] == nil || o.values["memory"] == nil:
		o.problems.add(o.at("size"), "is required unless both cpus and memory are given")
	}
	if cpus == 0 {
		cpus = chosen.cpus
	}
	if memory == nil && known {
		memory = ptr.To(resource.MustParse(chosen.memory))
	}
	s.cpus, s.memory = int32(cpus), ptr.Deref(memory, resource.Quantity{})
}

// noted reports whether there is a problem with a field already.
func (o *object) noted(name string) bool {
	return slices.ContainsFunc(o.problems.texts, func(text string) bool { return strings.HasPrefix(text, o.at(name)+":") })
}

// sizeNames lists the sizes, smallest first.
func sizeNames() []string {
	return slices.SortedFunc(maps.Keys(sizeTable), func(a, b string) int {
		smaller, larger := resource.MustParse(sizeTable[a].memory), resource.MustParse(sizeTable[b].memory)
		return smaller.Cmp(larger)
	})
}

// memoryPattern is less than what a quantity may be: nothing that could be a slip.
var memoryPattern = regexp.MustCompile(`^[0-9]{1,15}(\.[0-9]{1,3})?(Ki|Mi|Gi|Ti)?$`)

func readMemory(o *object) *resource.Quantity {
	text := o.text("memory")
	if text == "" {
		return nil
	}
	if !memoryPattern.MatchString(text) {
		o.problems.add(o.at("memory"), `%q is no size of memory like "512Mi" or "2Gi"`, text)
		return nil
	}
	quantity := resource.MustParse(text)
	switch bytes := quantity.Value(); {
	case bytes < leastMemory || bytes > mostMemory:
		o.problems.addRange(o.at("memory"), "%s is not between 32Mi and 16Ti", text)
	case bytes%mebibyte != 0:
		o.problems.add(o.at("memory"), "%s is not a multiple of 1Mi", text)
	default:
		return &quantity
	}
	return nil
}

func (s *spec) readDisk(o *object) {
	gigabytes := o.between("rootFsSize", 1, mostRootFsSize)
	if gigabytes == 0 {
		gigabytes = defaultRootFsSize
	}
	s.rootDisk = *resource.NewQuantity(gigabytes<<30, resource.BinarySI)
	s.storageClassName = o.named("storageClassName", validation.IsDNS1123Subdomain)
}

func (s *spec) readBoot(o *object) {
	image, kernel := o.object("image"), o.object("kernelBoot")
	if image == nil && kernel == nil {
		o.problems.add(o.path, "image or kernelBoot is required: something to boot from")
	}
	if image != nil {
		file := readFile(image)
		s.image = &vmv1alpha1.InitialImage{URL: file.URL, Checksum: file.Checksum}
		s.image.Format = vmv1alpha1.ImageFormat(image.oneOf("format", string(vmv1alpha1.FormatRaw), string(vmv1alpha1.FormatQCOW2)))
		image.finish()
	}
	if kernel != nil {
		s.kernelBoot = readKernel(kernel)
	}
}

func readKernel(o *object) *vmv1alpha1.KernelBoot {
	boot := &vmv1alpha1.KernelBoot{CommandLine: o.text("commandLine")}
	if strings.ContainsFunc(boot.CommandLine, unicode.IsControl) {
		o.problems.add(o.at("commandLine"), "must be one line, without control characters")
	}
	if len(boot.CommandLine) > longestCommandLine {
		o.problems.add(o.at("commandLine"), "is longer than %d bytes", longestCommandLine)
	}
	if kernel := o.object("kernel"); kernel == nil {
		o.problems.add(o.at("kernel"), "is required")
	} else {
		boot.Kernel = readFile(kernel)
		kernel.finish()
	}
	if initrd := o.object("initrd"); initrd != nil {
		file := readFile(initrd)
		boot.Initrd = &file
		initrd.finish()
	}
	o.finish()
	return boot
}

var checksumPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// readFile reads what all files have.
func readFile(o *object) vmv1alpha1.BootFile {
	file := vmv1alpha1.BootFile{URL: o.text("url"), Checksum: o.text("checksum")}
	switch {
	case file.URL != "":
		checkURL(o, file.URL)
	case !o.noted("url"):
		o.problems.add(o.at("url"), "is required")
	}
	if file.Checksum != "" && !checksumPattern.MatchString(file.Checksum) {
		o.problems.add(o.at("checksum"), `must be "sha256:" and 64 lower-case hexadecimal digits`)
	}
	return file
}

// checkURL does not quote the URL, as it may hold a password.
func checkURL(o *object, text string) {
	parsed, err := url.Parse(text)
	switch {
	case err != nil || strings.ContainsFunc(text, isBlank):
		o.problems.add(o.at("url"), "is not a URL")
	case parsed.User != nil:
		o.problems.add(o.at("url"), "must not hold a user or password: everybody who may see the VirtualMachine would see them")
	case parsed.Scheme == "file" && parsed.Host == "" && len(parsed.Path) > 1:
	case (parsed.Scheme == "http" || parsed.Scheme == "https") && parsed.Host != "":
	default:
		o.problems.add(o.at("url"), "must be like https://HOST/PATH, http://HOST/PATH or file:///PATH")
	}
}

func readAddresses(o *object) []string {
	texts := o.list("addresses")
	perVersion := map[bool]int{}
	for i, text := range texts {
		field := fmt.Sprintf("addresses[%d]", i)
		if o.noted(field) {
			continue
		}
		address, err := netip.ParseAddr(text)
		if network, networkErr := netip.ParsePrefix(text); err != nil && networkErr == nil && network.IsSingleIP() {
			address, err = network.Addr(), nil
		}
		if err != nil || address.Zone() != "" || address.Is4In6() {
			o.problems.add(o.at(field), "%q is no IP address", text)
			continue
		}
		if perVersion[address.Is4()]++; perVersion[address.Is4()] == 2 {
			o.problems.add(o.at(field), "is a second address of its IP version")
		}
	}
	return texts
}
