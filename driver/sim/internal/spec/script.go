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

// Annotations of a MachineClass that change what the provider does while it runs.
const (
	// AnnotationFaults holds a list of faults, as JSON.
	AnnotationFaults = "sim.millwright.dev/faults"
	// AnnotationOutage names the zones that do not answer, separated by commas; AllZones is all, and
	// what has no zone.
	AnnotationOutage = "sim.millwright.dev/outage"
)

// AllZones is a value of AnnotationOutage.
const AllZones = "*"

// Script is what the annotations of a class say.
type Script struct {
	// Text of the faults and the class that has them: the same faults have the same Text.
	Text   string
	Faults []Fault
	outage []string
}

// Fault is an element of AnnotationFaults. The fields are those of sim.Fault; codes are names, such as
// "Internal".
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

// parseScript reads the annotations of a class.
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
		return script, fmt.Errorf("annotation %s: %w", AnnotationFaults, err)
	}
	for i, fault := range script.Faults {
		if err := fault.check(); err != nil {
			return script, fmt.Errorf("annotation %s: [%d].%w", AnnotationFaults, i, err)
		}
	}
	script.Text = class.Namespace + "/" + class.Name + " " + text
	return script, nil
}

// check validates a fault. Its errors begin with the name of the field.
func (f Fault) check() error {
	for _, name := range f.Codes {
		if code := codes.StringToCode(name); code == codes.OK || code.String() != name {
			return fmt.Errorf("codes: %q is no code of an error", name)
		}
	}
	if _, err := path.Match(f.Machine, ""); err != nil {
		return fmt.Errorf("machine: %q is not a pattern", f.Machine)
	}
	if f.Rate < 0 || f.Rate > 1 {
		return fmt.Errorf("rate: %v is not between 0 and 1", f.Rate)
	}
	return nil
}

// Out reports whether a zone does not answer. Without a zone of its own, a call is about all.
func (s Script) Out(zone string, ofMachine bool) bool {
	switch {
	case len(s.outage) == 0:
		return false
	case !ofMachine: // a list without a zone would be partial
		return true
	}
	return slices.Contains(s.outage, AllZones) || zone != "" && slices.Contains(s.outage, zone)
}
