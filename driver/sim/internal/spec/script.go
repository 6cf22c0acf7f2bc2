package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
)

// Annotations of a MachineClass that change the behavior of the provider at run time.
const (
	// AnnotationFaults is a list of faults in JSON.
	AnnotationFaults = "sim.millwright.dev/faults"
	// AnnotationOutage lists the zones that do not respond, separated by commas. AllZones means all zones and all
	// calls without a zone.
	AnnotationOutage = "sim.millwright.dev/outage"
)

// AllZones is a value of AnnotationOutage.
const AllZones = "*"

// Script contains the behavior that the annotations of a class define.
type Script struct {
	// Text identifies the faults and their class: the same faults have the same Text.
	Text   string
	Faults []Fault
	outage []string
}

// Fault is an element of AnnotationFaults. The fields are those of sim.Fault; codes are names, such as "Internal".
type Fault struct {
	Method     string   `json:"method"`
	Machine    string   `json:"machine"`
	Codes      []string `json:"codes"`
	Message    string   `json:"message"`
	Times      int      `json:"times"`
	Rate       float64  `json:"rate"`
	LostAnswer bool     `json:"lostAnswer"`
	Hang       bool     `json:"hang"`
}

// parseScript parses the annotations of a class.
func parseScript(class *v1alpha1.MachineClass) (Script, error) {
	script := Script{}
	for zone := range strings.SplitSeq(class.Annotations[AnnotationOutage], ",") {
		if zone = strings.TrimSpace(zone); zone != "" {
			script.outage = append(script.outage, zone)
		}
	}
	text := class.Annotations[AnnotationFaults]
	if text == "" {
		return script, nil
	}
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&script.Faults); err != nil {
		return script, fmt.Errorf("invalid annotation %s: %w", AnnotationFaults, err)
	}
	for i, fault := range script.Faults {
		if err := fault.check(); err != nil {
			return script, fmt.Errorf("invalid annotation %s: [%d].%w", AnnotationFaults, i, err)
		}
	}
	script.Text = class.Namespace + "/" + class.Name + " " + text
	return script, nil
}

// check validates a fault. Its errors start with the name of the field.
func (f Fault) check() error {
	for _, name := range f.Codes {
		if code := codes.StringToCode(name); code == codes.OK || code.String() != name {
			return fmt.Errorf("codes: %q is not an error code", name)
		}
	}
	if _, err := path.Match(f.Machine, ""); err != nil {
		return fmt.Errorf("machine: %q is not a valid pattern", f.Machine)
	}
	if f.Rate < 0 || f.Rate > 1 {
		return fmt.Errorf("rate: %v is not between 0 and 1", f.Rate)
	}
	return nil
}

// Out reports whether a zone does not respond. A call without a zone concerns all zones.
func (s Script) Out(zone string, ofMachine bool) bool {
	switch {
	case len(s.outage) == 0:
		return false
	case !ofMachine: // a list that lacks a zone would be incomplete
		return true
	}
	return slices.Contains(s.outage, AllZones) || zone != "" && slices.Contains(s.outage, zone)
}
