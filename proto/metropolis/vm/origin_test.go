package vmpb_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// additions are the definitions that the origin does not have. Their numbers are not used in the origin, so they do
// not affect a party that knows only the origin.
var additions = map[string]string{
	"VMSpec.uuid":             "8 optional string, JSON uuid",
	"VMSpec.resources":        "9 optional metropolis.proto.vm.Resources, JSON resources",
	"VMSpec.kernel_boot":      "10 optional metropolis.proto.vm.KernelBoot, JSON kernelBoot",
	"VMSpec.user_data":        "11 optional metropolis.proto.vm.UserData, JSON userData",
	"VMSpec.pod_name":         "12 optional string, JSON podName",
	"VMSpec.root_disk_path":   "13 optional string, JSON rootDiskPath",
	"VMSpec.root_disk_bytes":  "14 optional uint64, JSON rootDiskBytes",
	"VMSpec.root_disk_exists": "15 optional bool, JSON rootDiskExists",

	"VMSpec.migration_source_pod": "16 optional string, JSON migrationSourcePod",
	"VMSpec.grace":                "17 optional google.protobuf.Duration, JSON grace",
	"VMSpec.root_disk_shared":     "18 optional bool, JSON rootDiskShared",
	"VMSpec.lease_duration":       "19 optional google.protobuf.Duration, JSON leaseDuration",
	"VMSpec.data_disks":           "20 repeated metropolis.proto.vm.DataDisk, JSON dataDisks",
	"VMSpec.disks_served":         "21 optional bool, JSON disksServed",

	"VMSpec.firmware":               "22 optional metropolis.proto.vm.VMSpec.Firmware, JSON firmware",
	"VMSpec.Firmware":               "enum",
	"VMSpec.Firmware.FIRMWARE_BIOS": "0",
	"VMSpec.Firmware.FIRMWARE_UEFI": "1",

	"VMSpec.shutdown_time": "23 optional google.protobuf.Duration, JSON shutdownTime",

	"VMSpec.display":              "24 optional metropolis.proto.vm.VMSpec.Display, JSON display",
	"VMSpec.Display":              "enum",
	"VMSpec.Display.DISPLAY_NONE": "0",
	"VMSpec.Display.DISPLAY_VNC":  "1",

	"DataDisk":               "message",
	"DataDisk.name":          "1 optional string, JSON name",
	"DataDisk.path":          "2 optional string, JSON path",
	"DataDisk.bytes":         "3 optional uint64, JSON bytes",
	"DataDisk.exists":        "4 optional bool, JSON exists",
	"DataDisk.initial_image": "5 optional metropolis.proto.vm.InitialImage, JSON initialImage",
	"DiskSize":               "message",
	"DiskSize.name":          "1 optional string, JSON name",
	"DiskSize.bytes":         "2 optional uint64, JSON bytes",

	"InitialImage.checksum":              "2 optional string, JSON checksum",
	"InitialImage.format":                "3 optional metropolis.proto.vm.InitialImage.Format, JSON format",
	"InitialImage.Format":                "enum",
	"InitialImage.Format.FORMAT_UNKNOWN": "0",
	"InitialImage.Format.FORMAT_RAW":     "1",
	"InitialImage.Format.FORMAT_QCOW2":   "2",

	"Resources":               "message",
	"Resources.cpus":          "1 optional uint32, JSON cpus",
	"Resources.memory_bytes":  "2 optional uint64, JSON memoryBytes",
	"KernelBoot":              "message",
	"KernelBoot.kernel":       "1 optional metropolis.proto.vm.BootFile, JSON kernel",
	"KernelBoot.initrd":       "2 optional metropolis.proto.vm.BootFile, JSON initrd",
	"KernelBoot.command_line": "3 optional string, JSON commandLine",
	"BootFile":                "message",
	"BootFile.url":            "1 optional string, JSON url",
	"BootFile.checksum":       "2 optional string, JSON checksum",
	"UserData":                "message",
	"UserData.path":           "1 optional string, JSON path",
	"UserData.host_name":      "2 optional string, JSON hostName",

	"RunLeaseRequest.release": "2 optional bool, JSON release",

	"RunLeaseUpdate.valid_for":     "2 optional google.protobuf.Duration, JSON validFor",
	"RunLeaseUpdate.fencing_token": "3 optional uint64, JSON fencingToken",
	"RunLeaseUpdate.paused":        "4 optional bool, JSON paused",
	"RunLeaseUpdate.migrate":       "5 optional bool, JSON migrate",
	"RunLeaseUpdate.grow":          "6 repeated metropolis.proto.vm.DiskSize, JSON grow",
	"RunLeaseUpdate.disk_server":   "7 optional metropolis.proto.vm.DiskServer, JSON diskServer",

	"DiskServer":         "message",
	"DiskServer.address": "1 optional string, JSON address",
	"DiskServer.pod":     "2 optional string, JSON pod",

	"EnsureMigrationTargetResponse.target_pod": "3 optional string, JSON targetPod",

	"EnsureMigrationTargetResponse.limits":                "4 optional metropolis.proto.vm.MigrationLimits, JSON limits",
	"EnsureMigrationTargetRequest.stopping":               "2 optional google.protobuf.Duration, JSON stopping",
	"EnsureMigrationTargetResponse.grace":                 "5 optional google.protobuf.Duration, JSON grace",
	"VMSpec.networks":                                     "25 repeated metropolis.proto.vm.NetworkInterface, JSON networks",
	"NetworkInterface":                                    "message",
	"NetworkInterface.interface":                          "2 optional string, JSON interface",
	"NetworkInterface.mac":                                "3 optional string, JSON mac",
	"NetworkInterface.name":                               "1 optional string, JSON name",
	"MigrationLimits":                                     "message",
	"MigrationLimits.bandwidth":                           "1 optional uint64, JSON bandwidth",
	"MigrationLimits.downtime":                            "2 optional google.protobuf.Duration, JSON downtime",
	"MigrationLimits.no_auto_converge":                    "3 optional bool, JSON noAutoConverge",
	"MigrationLimits.completion_timeout":                  "4 optional google.protobuf.Duration, JSON completionTimeout",
	"MigrationLimits.timeout_policy":                      "5 optional metropolis.proto.vm.MigrationLimits.TimeoutPolicy, JSON timeoutPolicy",
	"MigrationLimits.TimeoutPolicy":                       "enum",
	"MigrationLimits.TimeoutPolicy.TIMEOUT_POLICY_PAUSE":  "0",
	"MigrationLimits.TimeoutPolicy.TIMEOUT_POLICY_CANCEL": "1",

	"VMController.ReportState":                      "metropolis.proto.vm.ReportStateRequest (stream false) to metropolis.proto.vm.ReportStateResponse (stream false)",
	"ReportStateRequest":                            "message",
	"ReportStateRequest.us":                         "1 optional metropolis.proto.vm.HypervisorID, JSON us",
	"ReportStateRequest.state":                      "2 optional metropolis.proto.vm.ReportStateRequest.State, JSON state",
	"ReportStateRequest.message":                    "3 optional string, JSON message",
	"ReportStateRequest.done_bytes":                 "4 optional uint64, JSON doneBytes",
	"ReportStateRequest.total_bytes":                "5 optional uint64, JSON totalBytes",
	"ReportStateRequest.endpoint":                   "6 optional string, JSON endpoint",
	"ReportStateRequest.image_prepared":             "7 optional bool, JSON imagePrepared",
	"ReportStateRequest.guest":                      "13 optional metropolis.proto.vm.ReportStateRequest.Guest, JSON guest",
	"ReportStateRequest.Guest":                      "message",
	"ReportStateRequest.Guest.ready":                "1 optional bool, JSON ready",
	"ReportStateRequest.Guest.message":              "2 optional string, JSON message",
	"ReportStateRequest.State":                      "enum",
	"ReportStateRequest.State.STATE_UNKNOWN":        "0",
	"ReportStateRequest.State.STATE_PREPARING":      "1",
	"ReportStateRequest.State.STATE_WAITING":        "2",
	"ReportStateRequest.State.STATE_RUNNING":        "3",
	"ReportStateRequest.State.STATE_PAUSED":         "4",
	"ReportStateRequest.State.STATE_STOPPING":       "5",
	"ReportStateRequest.State.STATE_INCOMING":       "6",
	"ReportStateRequest.cause":                      "8 optional metropolis.proto.vm.ReportStateRequest.Cause, JSON cause",
	"ReportStateRequest.Cause":                      "enum",
	"ReportStateRequest.Cause.CAUSE_UNKNOWN":        "0",
	"ReportStateRequest.Cause.CAUSE_DISK_LOCKED":    "1",
	"ReportStateRequest.Cause.CAUSE_NO_SPACE":       "2",
	"ReportStateRequest.Cause.CAUSE_STORAGE_FAILED": "3",
	"ReportStateRequest.Cause.CAUSE_SUSPENDED":      "4",
	"ReportStateRequest.sequence":                   "9 optional uint64, JSON sequence",
	"ReportStateResponse":                           "message",

	"ReportStateRequest.migration":                     "10 optional metropolis.proto.vm.ReportStateRequest.Migration, JSON migration",
	"ReportStateRequest.can_migrate":                   "11 optional bool, JSON canMigrate",
	"ReportStateRequest.disks":                         "12 repeated metropolis.proto.vm.DiskSize, JSON disks",
	"ReportStateRequest.Migration":                     "message",
	"ReportStateRequest.Migration.phase":               "1 optional metropolis.proto.vm.ReportStateRequest.Migration.Phase, JSON phase",
	"ReportStateRequest.Migration.target_pod":          "2 optional string, JSON targetPod",
	"ReportStateRequest.Migration.done_bytes":          "3 optional uint64, JSON doneBytes",
	"ReportStateRequest.Migration.total_bytes":         "4 optional uint64, JSON totalBytes",
	"ReportStateRequest.Migration.downtime":            "5 optional google.protobuf.Duration, JSON downtime",
	"ReportStateRequest.Migration.message":             "6 optional string, JSON message",
	"ReportStateRequest.Migration.convergence":         "7 optional metropolis.proto.vm.ReportStateRequest.Migration.Convergence, JSON convergence",
	"ReportStateRequest.Migration.timed_out":           "8 optional bool, JSON timedOut",
	"ReportStateRequest.Migration.Phase":               "enum",
	"ReportStateRequest.Migration.Phase.PHASE_UNKNOWN": "0",
	"ReportStateRequest.Migration.Phase.PHASE_COPYING": "1",
	"ReportStateRequest.Migration.Phase.PHASE_STOPPED": "2",
	"ReportStateRequest.Migration.Phase.PHASE_DONE":    "3",
	"ReportStateRequest.Migration.Phase.PHASE_FAILED":  "4",

	"ReportStateRequest.Migration.Convergence":                     "enum",
	"ReportStateRequest.Migration.Convergence.CONVERGENCE_UNKNOWN": "0",
	"ReportStateRequest.Migration.Convergence.CONVERGENCE_FAILING": "1",
	"ReportStateRequest.Migration.Convergence.CONVERGENCE_FORCED":  "2",

	"ResetRequest.idempotency_counter": "1 optional uint64, JSON idempotencyCounter",

	"Hypervisor.CarryConnections": "metropolis.proto.vm.GuestPacket (stream true) to metropolis.proto.vm.GuestPacket (stream true)",
	"GuestPacket":                 "message",
	"GuestPacket.packet":          "1 optional bytes, JSON packet",

	"OOBManagement.Forward": "metropolis.proto.vm.ForwardIO (stream true) to metropolis.proto.vm.ForwardIO (stream true)",
	"ForwardIO":             "message",
	"ForwardIO.port":        "1 optional uint32, JSON port",
	"ForwardIO.data":        "2 optional bytes, JSON data",

	"OOBManagement.Display":    "metropolis.proto.vm.DisplayIO (stream true) to metropolis.proto.vm.DisplayIO (stream true)",
	"DisplayIO":                "message",
	"DisplayIO.data":           "1 optional bytes, JSON data",
	"OOBManagement.Screenshot": "metropolis.proto.vm.ScreenshotRequest (stream false) to metropolis.proto.vm.ScreenshotPart (stream true)",
	"ScreenshotRequest":        "message",
	"ScreenshotPart":           "message",
	"ScreenshotPart.data":      "1 optional bytes, JSON data",

	"MigrationProtocol.qemu_nbd": "2 optional metropolis.proto.vm.MigrationProtocol.QemuNBD, JSON qemuNbd, of kind",
	"MigrationProtocol.QemuNBD":  "message",

	"MigrationProtocol.QemuNBD.constraint_with_blockmigration": "1 optional bool, JSON constraintWithBlockmigration",
	"MigrationProtocol.QemuNBD.negotiated_endpoint":            "2 optional string, JSON negotiatedEndpoint",
	"MigrationProtocol.QemuNBD.negotiated_nbd_endpoint":        "3 optional string, JSON negotiatedNbdEndpoint",
	"MigrationProtocol.QemuNBD.negotiated_export":              "4 optional string, JSON negotiatedExport",
	"MigrationProtocol.QemuNBD.constraint_tls":                 "5 optional bool, JSON constraintTls",
	"MigrationProtocol.QemuNBD.constraint_disk_bytes":          "6 optional uint64, JSON constraintDiskBytes",
	"MigrationProtocol.QemuNBD.constraint_hardware":            "7 optional string, JSON constraintHardware",
	"MigrationProtocol.QemuNBD.constraint_data_disks":          "8 repeated metropolis.proto.vm.DiskSize, JSON constraintDataDisks",
	"MigrationProtocol.QemuNBD.negotiated_data_exports":        "9 repeated string, JSON negotiatedDataExports",
	"MigrationProtocol.QemuNBD.constraint_disks_served":        "10 optional bool, JSON constraintDisksServed",
}

// TestProtocol_ConsistsOfOriginAndAdditions checks names, numbers and types.
func TestProtocol_ConsistsOfOriginAndAdditions(t *testing.T) {
	want := flatten(readOrigin(t))
	if len(want) != 77 {
		t.Fatalf("the origin has %d definitions, want 77: was its file changed?", len(want))
	}
	for name, addition := range additions {
		if definition, exists := want[name]; exists {
			t.Errorf("%s is listed as an addition, but the origin has it: %s", name, definition)
		}
		want[name] = addition
	}
	if diff := cmp.Diff(want, flatten(vmpb.File_metropolis_vm_vm_proto)); diff != "" {
		t.Errorf("definitions (-origin and additions +ours):\n%s", diff)
	}
}

// TestProtocol_HasPackageOfOrigin checks the package, which is part of the names of services.
func TestProtocol_HasPackageOfOrigin(t *testing.T) {
	if want, got := readOrigin(t).Package(), vmpb.File_metropolis_vm_vm_proto.Package(); want != got {
		t.Errorf("package %s, want %s", got, want)
	}
}

func readOrigin(t *testing.T) protoreflect.FileDescriptor {
	t.Helper()
	data, err := os.ReadFile("testdata/origin.txtpb")
	if err != nil {
		t.Fatal(err)
	}
	set := &descriptorpb.FileDescriptorSet{}
	if err := prototext.Unmarshal(data, set); err != nil {
		t.Fatal(err)
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		t.Fatal(err)
	}
	file, err := files.FindFileByPath("metropolis/vm/vm.proto")
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// flatten returns descriptions of all definitions in a file. The keys are names without the package.
func flatten(file protoreflect.FileDescriptor) map[string]string {
	out := definitions{prefix: len(file.Package()) + 1, found: map[string]string{}}
	out.addMessages(file.Messages())
	out.addEnums(file.Enums())
	for i := range file.Services().Len() {
		service := file.Services().Get(i)
		out.add(service, "service")
		for j := range service.Methods().Len() {
			out.add(service.Methods().Get(j), describeMethod(service.Methods().Get(j)))
		}
	}
	return out.found
}

// definitions collects descriptions by name, without the package.
type definitions struct {
	prefix int
	found  map[string]string
}

func (d definitions) add(of protoreflect.Descriptor, description string) {
	d.found[string(of.FullName())[d.prefix:]] = description
}

func (d definitions) addMessages(messages protoreflect.MessageDescriptors) {
	for i := range messages.Len() {
		message := messages.Get(i)
		d.add(message, "message")
		for j := range message.Fields().Len() {
			d.add(message.Fields().Get(j), describeField(message.Fields().Get(j)))
		}
		d.addMessages(message.Messages())
		d.addEnums(message.Enums())
	}
}

func (d definitions) addEnums(enums protoreflect.EnumDescriptors) {
	for i := range enums.Len() {
		enum := enums.Get(i)
		d.add(enum, "enum")
		for j := range enum.Values().Len() {
			value := enum.Values().Get(j)
			// The full name of a value contains the parent of its enum, not the enum.
			d.found[fmt.Sprintf("%s.%s", enum.FullName()[d.prefix:], value.Name())] = fmt.Sprint(value.Number())
		}
	}
}

func describeField(field protoreflect.FieldDescriptor) string {
	kind := field.Kind().String()
	switch {
	case field.Message() != nil:
		kind = string(field.Message().FullName())
	case field.Enum() != nil:
		kind = string(field.Enum().FullName())
	}
	description := fmt.Sprintf("%d %s %s, JSON %s", field.Number(), field.Cardinality(), kind, field.JSONName())
	if oneof := field.ContainingOneof(); oneof != nil {
		description += fmt.Sprintf(", of %s", oneof.Name())
	}
	return description
}

func describeMethod(method protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("%s (stream %t) to %s (stream %t)",
		method.Input().FullName(), method.IsStreamingClient(), method.Output().FullName(), method.IsStreamingServer())
}
