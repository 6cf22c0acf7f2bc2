package vm

import (
	gojson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// providerSpec is the provider specification of a class; see docs/drivers/vm.md.
type providerSpec struct {
	metav1.TypeMeta  `json:",inline"`
	VMPool           string                     `json:"vmPool"`
	Size             string                     `json:"size,omitempty"`
	CPUs             *int64                     `json:"cpus,omitempty"`
	Memory           string                     `json:"memory,omitempty"`
	RootFsSize       *int64                     `json:"rootFsSize,omitempty"` // GiB
	StorageClassName string                     `json:"storageClassName,omitempty"`
	DataDisks        []dataDisk                 `json:"dataDisks,omitempty"`
	Tags             map[string]string          `json:"tags"`
	Image            *vmv1alpha1.InitialImage   `json:"image,omitempty"`
	Firmware         vmv1alpha1.Firmware        `json:"firmware,omitempty"`
	KernelBoot       *vmv1alpha1.KernelBoot     `json:"kernelBoot,omitempty"`
	Display          vmv1alpha1.Display         `json:"display,omitempty"`
	FailureDomain    string                     `json:"failureDomain,omitempty"`
	Addresses        []string                   `json:"addresses,omitempty"`
	MigrateStrategy  vmv1alpha1.MigrateStrategy `json:"migrateStrategy,omitempty"`
	GraceSeconds     *int64                     `json:"terminationGracePeriodSeconds,omitempty"`
	HypervisorImage  string                     `json:"hypervisorImage,omitempty"`
	Ports            []vmv1alpha1.Port          `json:"ports,omitempty"`
	ReadinessProbe   *vmv1alpha1.ReadinessProbe `json:"readinessProbe,omitempty"`

	LeaseMode    vmv1alpha1.LeaseMode                `json:"leaseMode,omitempty"`
	LeaseSeconds *int64                              `json:"leaseDurationSeconds,omitempty"`
	DiskAccess   vmv1alpha1.DiskAccess               `json:"diskAccess,omitempty"`
	AccessModes  []corev1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
	VolumeMode   corev1.PersistentVolumeMode         `json:"volumeMode,omitempty"`
	HostSelector map[string]string                   `json:"hostSelector,omitempty"`
	AntiAffinity *antiAffinity                       `json:"antiAffinity,omitempty"`
	Resources    *resources                          `json:"resources,omitempty"`

	AddressesFromPools []vmv1alpha1.IPPoolReference `json:"addressesFromPools,omitempty"`
	Networks           []network                    `json:"networks,omitempty"`
}

var specPath = field.NewPath("providerSpec")

// failureDomainField is the JSON name of providerSpec.FailureDomain.
const failureDomainField = "failureDomain"

// graceField is the JSON name of providerSpec.GraceSeconds.
const graceField = "terminationGracePeriodSeconds"

const (
	maxCPUs         = 255
	maxRootFsSize   = 65536 // GiB
	minMemory       = 32 << 20
	maxMemory       = 16 << 40
	maxGraceSeconds = 3600
	maxCommandLine  = 2047 // limit of Linux on x86
	maxTagLength    = 256  // limit of keys and of values, as with large providers
	clusterTag      = "kubernetes.io/cluster/"
	roleTag         = "kubernetes.io/role/"
	originRange     = "range" // marks errors about numbers out of range
	maxErrors       = 20      // maximum number of errors in a message, which becomes part of a Machine's status
	maxErrorMessage = 500     // maximum bytes of an error, which may quote the specification
)

// sizes are the values of the field size, in ascending order.
var sizes = []struct {
	name   string
	cpus   int64
	memory string
}{
	{"xsmall", 1, "256Mi"},
	{"small", 1, "512Mi"},
	{"medium", 2, "2Gi"},
	{"large", 4, "8Gi"},
	{"xlarge", 8, "16Gi"},
}

// parseSpec decodes and validates a provider specification, and sets the values of its size. The error has the code
// InvalidArgument, or OutOfRange if the only errors are numbers out of range.
func parseSpec(raw []byte) (*providerSpec, error) {
	s := &providerSpec{}
	unknown, err := json.UnmarshalStrict(raw, s, json.DisallowUnknownFields)
	if err != nil {
		return nil, undecodable(err)
	}
	code := codes.OutOfRange
	var errs []error
	for _, err := range s.validate() {
		errs = append(errs, err)
		if err.Origin != originRange {
			code = codes.InvalidArgument
		}
	}
	for _, err := range unknown {
		errs = append(errs, fmt.Errorf("%s: %w", specPath, err))
		code = codes.InvalidArgument
	}
	if len(errs) > 0 {
		return nil, status.Error(code, describe(errs))
	}
	s.applySize()
	return s, nil
}

// parseToFind decodes and validates only the fields that identify the VM of a machine: the pool and the tag of the cluster. All
// other fields may be unknown or invalid, for example because a later version wrote them, so that Machines can be deleted even
// if no VM can be created from their class.
func parseToFind(raw []byte) (*providerSpec, error) { return parseIdentity(raw, clusterTag) }

// parseToList is like parseToFind, for the VMs of a class, which the tag of the role also identifies.
func parseToList(raw []byte) (*providerSpec, error) { return parseIdentity(raw, clusterTag, roleTag) }

// parseIdentity decodes the pool and the tags. It validates the pool, and the tags with these prefixes. It does not set other
// fields of the result.
func parseIdentity(raw []byte, prefixes ...string) (*providerSpec, error) {
	var fields struct {
		VMPool string            `json:"vmPool"`
		Tags   map[string]string `json:"tags"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, &fields); err != nil {
		return nil, undecodable(err)
	}
	s := &providerSpec{VMPool: fields.VMPool, Tags: fields.Tags}
	errs := s.validatePool()
	for _, prefix := range prefixes {
		errs = append(errs, s.validateTagged(prefix)...)
	}
	if len(errs) > 0 {
		return nil, status.Error(codes.InvalidArgument, describe(errs.ToAggregate().Errors()))
	}
	return s, nil
}

// undecodable returns the error for a provider specification that cannot be decoded.
func undecodable(err error) error {
	if wrong, ok := errors.AsType[*gojson.UnmarshalTypeError](err); ok {
		path := specPath
		if wrong.Field != "" { // if empty, the error concerns the whole specification
			path = path.Child(wrong.Field)
		}
		return status.Error(codes.InvalidArgument, fmt.Sprintf("%s: unexpected %s", path, wrong.Value))
	}
	return status.Error(codes.InvalidArgument, describe([]error{fmt.Errorf("%s: %w", specPath, err)}))
}

// describe returns a message of limited length for errors.
func describe(errs []error) string {
	var texts []string
	for _, err := range errs {
		text := err.Error()
		if len(text) > maxErrorMessage {
			text = strings.ToValidUTF8(text[:maxErrorMessage], "") + "…"
		}
		texts = append(texts, text)
	}
	if more := len(texts) - maxErrors; more > 0 {
		texts = append(texts[:maxErrors], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

func (s *providerSpec) validate() field.ErrorList {
	errs := slices.Concat(s.validatePool(), s.validateNames(), s.validateSize(), s.validateTags(), s.validateAddresses(), s.validateDataDisks(), s.validateFirmware(),
		s.validateDisplay(), s.validateNetworks(), s.validatePorts(), s.validateProbe(), s.validateLeases(), s.validateHosts())
	if s.Image == nil && s.KernelBoot == nil {
		errs = append(errs, field.Required(specPath, "set image or kernelBoot to boot the VM"))
	}
	if s.Image != nil {
		errs = append(errs, validateImage(specPath.Child("image"), s.Image)...)
	}
	if s.KernelBoot != nil {
		errs = append(errs, s.validateKernelBoot()...)
	}
	return errs
}

func (s *providerSpec) validatePool() field.ErrorList {
	if s.VMPool == "" {
		return field.ErrorList{field.Required(specPath.Child("vmPool"), "must be the namespace of the VirtualMachines")}
	}
	return validateName("vmPool", s.VMPool, validation.IsDNS1123Label)
}

// validateName returns the problems that a check finds in a field. An empty field is valid.
func validateName(name, value string, check func(string) []string) field.ErrorList {
	var errs field.ErrorList
	if value == "" {
		return nil
	}
	for _, wrong := range check(value) {
		errs = append(errs, field.Invalid(specPath.Child(name), value, wrong))
	}
	return errs
}

func (s *providerSpec) validateNames() field.ErrorList {
	errs := validateName("storageClassName", s.StorageClassName, validation.IsDNS1123Subdomain)
	errs = append(errs, validateName(failureDomainField, s.FailureDomain, validation.IsValidLabelValue)...)
	strategies := []vmv1alpha1.MigrateStrategy{"", vmv1alpha1.MigrateLive, vmv1alpha1.MigrateCold}
	if !slices.Contains(strategies, s.MigrateStrategy) {
		errs = append(errs, field.NotSupported(specPath.Child("migrateStrategy"), s.MigrateStrategy, strategies[1:]))
	}
	if s.GraceSeconds != nil && (*s.GraceSeconds < 1 || *s.GraceSeconds > maxGraceSeconds) {
		errs = append(errs, outOfRange(graceField, *s.GraceSeconds, "1 and 3600"))
	}
	if strings.ContainsFunc(s.HypervisorImage, isBlank) {
		errs = append(errs, field.Invalid(specPath.Child("hypervisorImage"), s.HypervisorImage, "must not contain blanks"))
	}
	return errs
}

func isBlank(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

func (s *providerSpec) validateSize() field.ErrorList {
	var errs field.ErrorList
	var names []string
	for _, size := range sizes {
		names = append(names, size.name)
	}
	switch path := specPath.Child("size"); {
	case s.Size == "" && (s.CPUs == nil || s.Memory == ""):
		errs = append(errs, field.Required(path, "set a size, or both cpus and memory"))
	case s.Size != "" && !slices.Contains(names, s.Size):
		errs = append(errs, field.NotSupported(path, s.Size, names))
	}
	if s.CPUs != nil && (*s.CPUs < 1 || *s.CPUs > maxCPUs) {
		errs = append(errs, outOfRange("cpus", *s.CPUs, "1 and 255"))
	}
	if s.RootFsSize != nil && (*s.RootFsSize < 1 || *s.RootFsSize > maxRootFsSize) {
		errs = append(errs, outOfRange("rootFsSize", *s.RootFsSize, "1 and 65536"))
	}
	if s.Memory != "" {
		errs = append(errs, s.validateMemory()...)
	}
	return errs
}

// memoryPattern accepts fewer formats than a quantity, to detect mistakes.
var memoryPattern = regexp.MustCompile(`^[0-9]{1,15}(\.[0-9]{1,3})?(Ki|Mi|Gi|Ti)?$`)

func (s *providerSpec) validateMemory() field.ErrorList {
	path := specPath.Child("memory")
	if !memoryPattern.MatchString(s.Memory) {
		return field.ErrorList{field.Invalid(path, s.Memory, "must be like 512Mi or 2Gi")}
	}
	quantity := resource.MustParse(s.Memory)
	switch bytes := quantity.Value(); {
	case bytes < minMemory || bytes > maxMemory:
		return field.ErrorList{outOfRange("memory", s.Memory, "32Mi and 16Ti")}
	case bytes%(1<<20) != 0:
		return field.ErrorList{field.Invalid(path, s.Memory, "must be a multiple of 1Mi")}
	}
	return nil
}

func outOfRange(name string, value any, between string) *field.Error {
	return field.Invalid(specPath.Child(name), value, "must be between "+between).WithOrigin(originRange)
}

// applySize sets CPUs and memory from the size, and the default size of the disk, unless the specification has
// values.
func (s *providerSpec) applySize() {
	for _, size := range sizes {
		if size.name == s.Size && s.CPUs == nil {
			s.CPUs = &size.cpus
		}
	}
	s.Memory = s.guestMemory()
	if s.RootFsSize == nil {
		s.RootFsSize = new(int64(1)) // enough for a guest that stores no data
	}
}

// guestMemory returns the memory of the specification or of its size, or "" if neither is set.
func (s *providerSpec) guestMemory() string {
	for _, size := range sizes {
		if size.name == s.Size && s.Memory == "" {
			return size.memory
		}
	}
	return s.Memory
}

// validateTags also checks that exactly one tag names the cluster of the VMs and one names their role.
func (s *providerSpec) validateTags() field.ErrorList {
	var errs field.ErrorList
	path := specPath.Child("tags")
	for _, key := range slices.Sorted(maps.Keys(s.Tags)) {
		if err := validateTag(key, s.Tags[key]); err != nil {
			errs = append(errs, field.Invalid(path.Key(key), field.OmitValueType{}, err.Error()))
		}
	}
	return slices.Concat(errs, s.validateTagged(clusterTag), s.validateTagged(roleTag))
}

// validateTagged checks that exactly one tag has the prefix and a valid name after it.
func (s *providerSpec) validateTagged(prefix string) field.ErrorList {
	path, names := specPath.Child("tags"), s.tagged(prefix)
	switch {
	case len(names) != 1:
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("must have exactly one key %s<NAME>, but has %d", prefix, len(names)))}
	case names[0] == "" || len(validation.IsValidLabelValue(names[0])) > 0:
		return field.ErrorList{field.Invalid(path.Key(prefix+names[0]), field.OmitValueType{}, "the part after "+prefix+" must be a non-empty label value")}
	}
	return nil
}

func validateTag(key, value string) error {
	switch {
	case key == "" || len(key) > maxTagLength || len(value) > maxTagLength:
		return fmt.Errorf("the key must have 1 to %[1]d bytes, and the value at most %[1]d bytes", maxTagLength)
	case strings.ContainsFunc(key, unicode.IsControl) || strings.ContainsFunc(value, unicode.IsControl):
		return errors.New("must not contain control characters")
	case strings.HasPrefix(key, prefix):
		return errors.New("the prefix is reserved for the driver")
	}
	return nil
}

// tagged returns the part after the prefix of each tag key with the prefix.
func (s *providerSpec) tagged(prefix string) []string {
	var names []string
	for key := range s.Tags {
		if name, ok := strings.CutPrefix(key, prefix); ok {
			names = append(names, name)
		}
	}
	return names
}

// cluster returns the cluster that the tags of a valid specification name.
func (s *providerSpec) cluster() string { return s.tagged(clusterTag)[0] }

// role returns the role that the tags of a valid specification name.
func (s *providerSpec) role() string { return s.tagged(roleTag)[0] }

func validateImage(path *field.Path, image *vmv1alpha1.InitialImage) field.ErrorList {
	errs := validateFile(path, image.URL, image.Checksum)
	formats := []vmv1alpha1.ImageFormat{"", vmv1alpha1.FormatRaw, vmv1alpha1.FormatQCOW2}
	if !slices.Contains(formats, image.Format) {
		errs = append(errs, field.NotSupported(path.Child("format"), image.Format, formats[1:]))
	}
	return errs
}

func (s *providerSpec) validateFirmware() field.ErrorList {
	path, known := specPath.Child("firmware"), []vmv1alpha1.Firmware{"", vmv1alpha1.FirmwareBIOS, vmv1alpha1.FirmwareUEFI}
	switch {
	case !slices.Contains(known, s.Firmware):
		return field.ErrorList{field.NotSupported(path, s.Firmware, known[1:])}
	case s.Firmware == vmv1alpha1.FirmwareUEFI && s.KernelBoot != nil:
		return field.ErrorList{field.Invalid(path, s.Firmware, "cannot be combined with kernelBoot, which boots without firmware")}
	}
	return nil
}

func (s *providerSpec) validateDisplay() field.ErrorList {
	known := []vmv1alpha1.Display{"", vmv1alpha1.DisplayNone, vmv1alpha1.DisplayVNC}
	if !slices.Contains(known, s.Display) {
		return field.ErrorList{field.NotSupported(specPath.Child("display"), s.Display, known[1:])}
	}
	return nil
}

func (s *providerSpec) validateKernelBoot() field.ErrorList {
	path, boot := specPath.Child("kernelBoot"), s.KernelBoot
	errs := validateFile(path.Child("kernel"), boot.Kernel.URL, boot.Kernel.Checksum)
	if boot.Initrd != nil {
		errs = append(errs, validateFile(path.Child("initrd"), boot.Initrd.URL, boot.Initrd.Checksum)...)
	}
	if strings.ContainsFunc(boot.CommandLine, unicode.IsControl) {
		errs = append(errs, field.Invalid(path.Child("commandLine"), boot.CommandLine, "must be one line, without control characters"))
	}
	if len(boot.CommandLine) > maxCommandLine {
		errs = append(errs, field.TooLong(path.Child("commandLine"), "", maxCommandLine))
	}
	return errs
}

var checksumPattern = regexp.MustCompile(vmv1alpha1.ChecksumPattern)

func validateFile(path *field.Path, url, checksum string) field.ErrorList {
	var errs field.ErrorList
	if url == "" {
		errs = append(errs, field.Required(path.Child("url"), ""))
	} else if err := validateURL(url); err != nil {
		// The URL is not quoted because it may contain a password.
		errs = append(errs, field.Invalid(path.Child("url"), field.OmitValueType{}, err.Error()))
	}
	if checksum != "" && !checksumPattern.MatchString(checksum) {
		errs = append(errs, field.Invalid(path.Child("checksum"), checksum, `must be "sha256:" and 64, or "sha512:" and 128, lower-case hexadecimal digits`))
	}
	return errs
}

func validateURL(text string) error {
	parsed, err := url.Parse(text)
	switch {
	case err != nil || strings.ContainsFunc(text, isBlank):
		return errors.New("must be a URL")
	case parsed.User != nil:
		return errors.New("must not contain a user or password, because all users who can read the VirtualMachine would see them")
	case parsed.Scheme == "file" && parsed.Host == "" && len(parsed.Path) > 1:
	case (parsed.Scheme == "http" || parsed.Scheme == "https") && parsed.Host != "":
	default:
		return errors.New("must be like https://HOST/PATH, http://HOST/PATH or file:///PATH")
	}
	return nil
}

func (s *providerSpec) validateAddresses() field.ErrorList {
	var errs field.ErrorList
	perVersion := map[bool]int{}
	for i, text := range s.Addresses {
		path := specPath.Child("addresses").Index(i)
		address, err := netip.ParseAddr(text)
		if network, networkErr := netip.ParsePrefix(text); networkErr == nil && network.IsSingleIP() {
			address, err = network.Addr(), nil
		}
		if err != nil || address.Zone() != "" || address.Is4In6() {
			errs = append(errs, field.Invalid(path, text, "must be an IP address"))
			continue
		}
		if perVersion[address.Is4()]++; perVersion[address.Is4()] == 2 {
			errs = append(errs, field.Invalid(path, text, "must not be a second address of the same IP version"))
		}
	}
	return append(errs, s.validatePools()...)
}
