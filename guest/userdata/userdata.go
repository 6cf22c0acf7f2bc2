// Package userdata parses the user data that names the cluster that a guest joins.
package userdata

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Header is the first line of user data in this format.
const Header = "#millwright-guest"

// ErrForeign means that the user data has another format. The error names it, if it is known.
var ErrForeign = errors.New("the user data does not begin with the line " + Header)

// The defaults are those of local mode.
const (
	DefaultPodNetwork = "10.78.0.0/16,fd6d:696c:6c77:100::/56"
	DefaultClusterDNS = "10.96.0.10"
)

// uuidVariable in ProviderID is replaced with the machine's UUID.
const uuidVariable = "${uuid}"

// FieldError means that a field is invalid. It never contains the token.
type FieldError struct {
	// Field is the name of the field.
	Field string
	// Problem is a message for users.
	Problem string
}

func (e *FieldError) Error() string { return "user data: " + e.Field + ": " + e.Problem }

// UserData configures the Node of a guest.
type UserData struct {
	// Server is the API server's URL, with the scheme https. It is required.
	Server string `json:"server"`
	// CertificateAuthority is the server's certificate authorities in PEM form. If empty, those of the public
	// ConfigMap cluster-info are used, whose signature is verified with the token.
	CertificateAuthority string `json:"certificateAuthority"`
	// Token is the bootstrap token, ID.SECRET. It is required.
	Token string `json:"token"`
	// NodeName is the name of the Node. Defaults to the machine's name.
	NodeName string `json:"nodeName"`
	// ProviderID of the Node, in which ${uuid} is replaced with the machine's UUID. It is optional.
	ProviderID string `json:"providerID"`
	// Labels of the Node. They are optional.
	Labels map[string]string `json:"labels"`
	// Taints of the Node. They are optional.
	Taints []Taint `json:"taints"`
	// PodNetwork is the network of the cluster's Pods, from which each Node gets a part: an IPv4 network,
	// optionally followed by a comma and an IPv6 network, which is used if the machine has an IPv6 address.
	// Only the full guest uses it. Defaults to DefaultPodNetwork.
	PodNetwork string `json:"podNetwork"`
	// ClusterDNS is the IP address of the DNS Service for Pods. Only the full guest uses it. Defaults to
	// DefaultClusterDNS.
	ClusterDNS string `json:"clusterDNS"`
}

// Taint is a taint of the Node.
type Taint struct {
	// Key is required.
	Key string `json:"key"`
	// Value is optional.
	Value string `json:"value,omitempty"`
	// Effect is NoSchedule, PreferNoSchedule or NoExecute. It is required.
	Effect string `json:"effect"`
}

// Machine provides defaults.
type Machine struct {
	// Name is the default for NodeName.
	Name string
	// UUID replaces ${uuid}. It is optional.
	UUID string
}

// Parse parses user data and applies the defaults. It returns ErrForeign, or a *FieldError for the first field
// that is invalid or unknown.
func Parse(content []byte, machine Machine) (UserData, error) {
	first, rest, _ := bytes.Cut(content, []byte("\n"))
	if strings.TrimRight(string(first), " \t\r") != Header {
		return UserData{}, fmt.Errorf("%w: %s", ErrForeign, formatOf(content))
	}
	var data UserData
	if err := yaml.UnmarshalStrict(rest, &data); err != nil {
		return UserData{}, &FieldError{"document", withoutValues(err)}
	}
	data.NodeName = cmp.Or(data.NodeName, machine.Name)
	data.PodNetwork = cmp.Or(data.PodNetwork, DefaultPodNetwork)
	data.ClusterDNS = cmp.Or(data.ClusterDNS, DefaultClusterDNS)
	if err := data.validate(); err != nil {
		return UserData{}, err
	}
	if strings.Contains(data.ProviderID, uuidVariable) && machine.UUID == "" {
		return UserData{}, &FieldError{"providerID", "refers to the UUID, but the machine has none"}
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

// withoutValues returns the part of a decoder's error that cannot contain a secret.
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
		{"podNetwork", podNetworkProblem(d.PodNetwork)},
		{"clusterDNS", clusterDNSProblem(d.ClusterDNS)},
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
			return &FieldError{fmt.Sprintf("taints[%d].effect", i), "is not one of " + strings.Join(effects, ", ")}
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

func podNetworkProblem(networks string) string {
	first, second, both := strings.Cut(networks, ",")
	good := isNetwork(first, netip.Addr.Is4) && (!both || isNetwork(second, netip.Addr.Is6))
	return problemUnless(good, "is not an IPv4 network like 10.78.0.0/16, with or without an IPv6 network after a comma")
}

func isNetwork(text string, isVersion func(netip.Addr) bool) bool {
	prefix, err := netip.ParsePrefix(text)
	return err == nil && isVersion(prefix.Addr()) && prefix == prefix.Masked()
}

func clusterDNSProblem(address string) string {
	parsed, err := netip.ParseAddr(address)
	return problemUnless(err == nil && parsed.Zone() == "", "is not an IP address like "+DefaultClusterDNS)
}

func serverProblem(server string) string {
	parsed, err := url.Parse(server)
	return problemUnless(err == nil && parsed.Scheme == "https" && parsed.Host != "", "is not a URL of the form https://HOST:PORT")
}

func authorityProblem(authority string) string {
	return problemUnless(authority == "" || x509.NewCertPool().AppendCertsFromPEM([]byte(authority)), "holds no certificate in PEM form")
}
