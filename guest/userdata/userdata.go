// Package userdata parses the user data that tells a guest which cluster to join.
package userdata

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Header is the first line of user data in this format.
const Header = "#millwright-guest"

// ErrForeign means that user data is of another format.
var ErrForeign = errors.New("the user data does not begin with the line " + Header)

// uuidVariable stands in ProviderID for the machine's UUID.
const uuidVariable = "${uuid}"

// FieldError is what is wrong with one field. It never holds the token.
type FieldError struct {
	// Field is its name as in the user data.
	Field string
	// Problem is for people.
	Problem string
}

func (e *FieldError) Error() string { return "user data: " + e.Field + ": " + e.Problem }

// UserData is how the guest becomes a Node.
type UserData struct {
	// Server is the API server's URL, https only. Required.
	Server string `json:"server"`
	// CertificateAuthority are the certificates, in PEM form, that vouch for the
	// server. Empty: they are taken from the cluster's public ConfigMap cluster-info,
	// whose signature the token verifies.
	CertificateAuthority string `json:"certificateAuthority"`
	// Token is the bootstrap token, ID.SECRET. Required.
	Token string `json:"token"`
	// NodeName is the name of the Node. Empty: it is the machine's.
	NodeName string `json:"nodeName"`
	// ProviderID of the Node. ${uuid} in it becomes the machine's UUID. May be empty.
	ProviderID string `json:"providerID"`
	// Labels of the Node. May be empty.
	Labels map[string]string `json:"labels"`
	// Taints of the Node. May be empty.
	Taints []Taint `json:"taints"`
}

// Taint keeps Pods that do not tolerate it from the Node.
type Taint struct {
	// Key is required.
	Key string `json:"key"`
	// Value may be empty.
	Value string `json:"value,omitempty"`
	// Effect is NoSchedule, PreferNoSchedule or NoExecute. Required.
	Effect string `json:"effect"`
}

// Machine is what user data may leave to the machine that reads them.
type Machine struct {
	// Name is that of the Node, if the user data name none.
	Name string
	// UUID stands for ${uuid}. May be empty.
	UUID string
}

// Parse reads user data and puts in what they leave to the machine. The error is ErrForeign,
// or a *FieldError that names the first wrong field; a field that is not known is wrong.
func Parse(content []byte, machine Machine) (UserData, error) {
	first, rest, _ := bytes.Cut(content, []byte("\n"))
	if strings.TrimRight(string(first), " \t\r") != Header {
		return UserData{}, ErrForeign
	}
	var data UserData
	if err := yaml.UnmarshalStrict(rest, &data); err != nil {
		return UserData{}, &FieldError{"document", withoutValues(err)}
	}
	data.NodeName = cmp.Or(data.NodeName, machine.Name)
	if err := data.validate(); err != nil {
		return UserData{}, err
	}
	if strings.Contains(data.ProviderID, uuidVariable) && machine.UUID == "" {
		return UserData{}, &FieldError{"providerID", "asks for a UUID, and the machine has none"}
	}
	data.ProviderID = strings.ReplaceAll(data.ProviderID, uuidVariable, strings.ToLower(machine.UUID))
	return data, nil
}

var (
	tokenPattern = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)
	namePattern  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)
	unknownField = regexp.MustCompile(`unknown field "([^"]*)"`)
	wrongType    = regexp.MustCompile(`Go struct field \S*?\.(\S+) of type`)
)

// withoutValues keeps of a decoder's error what cannot hold a secret.
func withoutValues(err error) string {
	for text, pattern := range map[string]*regexp.Regexp{"unknown field ": unknownField, "wrong type of field ": wrongType} {
		if match := pattern.FindStringSubmatch(err.Error()); match != nil {
			return text + match[1]
		}
	}
	return "not a YAML mapping of the known fields"
}

const longestName = 253

func (d *UserData) validate() error {
	for _, field := range []struct{ name, problem string }{
		{"server", serverProblem(d.Server)},
		{"certificateAuthority", authorityProblem(d.CertificateAuthority)},
		{"token", problemUnless(tokenPattern.MatchString(d.Token), "is not of the form ID.SECRET, of 6 and 16 letters a-z and digits")},
		{"nodeName", problemUnless(len(d.NodeName) <= longestName && namePattern.MatchString(d.NodeName),
			"is not a name of lower case letters, digits, '-' and '.'")},
	} {
		if field.problem != "" {
			return &FieldError{field.name, field.problem}
		}
	}
	effects := []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}
	for i, taint := range d.Taints {
		if taint.Key == "" {
			return &FieldError{fmt.Sprintf("taints[%d].key", i), "is missing"}
		}
		if !slices.Contains(effects, taint.Effect) {
			return &FieldError{fmt.Sprintf("taints[%d].effect", i), "is none of " + strings.Join(effects, ", ")}
		}
	}
	return nil
}

func problemUnless(good bool, problem string) string {
	if good {
		return ""
	}
	return problem
}

func serverProblem(server string) string {
	parsed, err := url.Parse(server)
	return problemUnless(err == nil && parsed.Scheme == "https" && parsed.Host != "", "is not a URL of the form https://HOST:PORT")
}

func authorityProblem(authority string) string {
	return problemUnless(authority == "" || x509.NewCertPool().AppendCertsFromPEM([]byte(authority)), "holds no certificate in PEM form")
}
