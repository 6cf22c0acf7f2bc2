package autoscaler

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	autoscalerpb "github.com/millwright-dev/millwright/proto/autoscaler"
)

// Annotations with the options of a MachineDeployment, which override the options of all groups. They have the
// same names as in Gardener's autoscaler.
const (
	AnnotationUtilization    = "autoscaler.gardener.cloud/scale-down-utilization-threshold"
	AnnotationGPUUtilization = "autoscaler.gardener.cloud/scale-down-gpu-utilization-threshold"
	AnnotationUnneeded       = "autoscaler.gardener.cloud/scale-down-unneeded-time"
	AnnotationUnready        = "autoscaler.gardener.cloud/scale-down-unready-time"
	AnnotationProvision      = "autoscaler.gardener.cloud/max-node-provision-time"
)

// Options returns the options of a deployment. The error describes the annotations that are ignored. Durations
// are returned in both formats, because older autoscalers require the older one.
func Options(deployment *v1alpha1.MachineDeployment, defaults *autoscalerpb.NodeGroupAutoscalingOptions) (*autoscalerpb.NodeGroupAutoscalingOptions, error) {
	of := &autoscalerpb.NodeGroupAutoscalingOptions{}
	if defaults != nil {
		of = proto.Clone(defaults).(*autoscalerpb.NodeGroupAutoscalingOptions)
	}
	var wrong []error
	for annotation, field := range map[string]*float64{
		AnnotationUtilization: &of.ScaleDownUtilizationThreshold, AnnotationGPUUtilization: &of.ScaleDownGpuUtilizationThreshold,
	} {
		wrong = append(wrong, fraction(deployment, annotation, field))
	}
	for annotation, field := range map[string]duration{
		AnnotationUnneeded:  {&of.ScaleDownUnneededDuration, &of.ScaleDownUnneededTime},
		AnnotationUnready:   {&of.ScaleDownUnreadyDuration, &of.ScaleDownUnreadyTime},
		AnnotationProvision: {&of.MaxNodeProvisionDuration, &of.MaxNodeProvisionTime},
	} {
		wrong = append(wrong, field.override(deployment, annotation))
	}
	return of, errors.Join(wrong...)
}

func fraction(deployment *v1alpha1.MachineDeployment, annotation string, field *float64) error {
	text, given := deployment.Annotations[annotation]
	if !given {
		return nil
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || !(value >= 0 && value <= 1) {
		return fmt.Errorf("annotation %s: %q is not between 0 and 1", annotation, text)
	}
	*field = value
	return nil
}

// duration is a duration option in both formats.
type duration struct {
	newer **durationpb.Duration
	older **autoscalerpb.KubernetesDuration
}

func (d duration) override(deployment *v1alpha1.MachineDeployment, annotation string) error {
	text, given := deployment.Annotations[annotation]
	if !given {
		return nil
	}
	value, err := time.ParseDuration(text)
	if err != nil || value < 0 {
		return fmt.Errorf("annotation %s: %q is not a duration, such as 90s or 5m", annotation, text)
	}
	*d.newer, *d.older = durationpb.New(value), &autoscalerpb.KubernetesDuration{Duration: int64(value)}
	return nil
}
