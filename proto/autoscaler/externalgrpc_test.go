package autoscalerpb

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// wire is the format that the autoscaler sends and reads: the number and type of every field of each message that is not
// empty.
const wire = `
NodeGroup 1 string, 2 int32, 3 int32, 4 string
ExternalGrpcNode 1 string, 2 string, 3 map, 4 map
NodeGroupsResponse 1 NodeGroup
NodeGroupForNodeRequest 1 ExternalGrpcNode
NodeGroupForNodeResponse 1 NodeGroup
PricingNodePriceRequest 1 ExternalGrpcNode, 4 Timestamp, 5 Timestamp
PricingNodePriceResponse 1 double
PricingPodPriceRequest 4 bytes, 5 Timestamp, 6 Timestamp
PricingPodPriceResponse 1 double
GPULabelResponse 1 string
GetAvailableGPUTypesResponse 1 map
NodeGroupTargetSizeRequest 1 string
NodeGroupTargetSizeResponse 1 int32
NodeGroupIncreaseSizeRequest 1 int32, 2 string
NodeGroupDeleteNodesRequest 1 ExternalGrpcNode, 2 string
NodeGroupDecreaseTargetSizeRequest 1 int32, 2 string
NodeGroupNodesRequest 1 string
NodeGroupNodesResponse 1 Instance
Instance 1 string, 2 InstanceStatus
InstanceStatus 1 enum, 2 InstanceErrorInfo
InstanceErrorInfo 1 string, 2 string, 3 int32
NodeGroupTemplateNodeInfoRequest 1 string
NodeGroupTemplateNodeInfoResponse 1 bytes, 2 bytes, 3 bytes
KubernetesDuration 1 int64
NodeGroupAutoscalingOptions 1 double, 2 double, 3 KubernetesDuration, 4 KubernetesDuration, 5 KubernetesDuration, 6 bool, 7 bool, 8 Duration, 9 Duration, 10 Duration, 11 Duration, 12 bool
NodeGroupAutoscalingOptionsRequest 1 string, 2 NodeGroupAutoscalingOptions
NodeGroupAutoscalingOptionsResponse 1 NodeGroupAutoscalingOptions
`

// TestMessages_WireFormatOfAutoscaler checks field numbers and types. Other tests do not detect a changed number, because both
// sides use the same generated code.
func TestMessages_WireFormatOfAutoscaler(t *testing.T) {
	got := "\n"
	messages := File_autoscaler_externalgrpc_proto.Messages()
	for i := range messages.Len() {
		if fields := messages.Get(i).Fields(); fields.Len() > 0 {
			got += string(messages.Get(i).Name()) + " " + described(fields) + "\n"
		}
	}
	if got != wire {
		t.Errorf("the messages are%s, want%s", got, wire)
	}
	service := File_autoscaler_externalgrpc_proto.Services().Get(0)
	if name := service.FullName(); name != "clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider" || service.Methods().Len() != 15 {
		t.Errorf("%s has %d methods", name, service.Methods().Len())
	}
}

func described(fields protoreflect.FieldDescriptors) string {
	var all []string
	for i := range fields.Len() {
		field := fields.Get(i)
		kind := field.Kind().String()
		switch {
		case field.IsMap():
			kind = "map"
		case field.Message() != nil:
			kind = string(field.Message().Name())
		}
		all = append(all, fmt.Sprint(field.Number(), " ", kind))
	}
	return strings.Join(all, ", ")
}
