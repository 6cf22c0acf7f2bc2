package userdata

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	secret  = "0123456789abcdef"
	minimal = "#millwright-guest\nserver: https://10.77.0.2:16443\ntoken: abcdef." + secret + "\nnodeName: one\n"
	uuid    = "6B0FF0B6-6a5f-4b8b-9c0a-0d3e5a1f7c21"
)

func TestParse(t *testing.T) {
	full := minimal + `providerID: millwright:///default/${uuid}
labels: {a: b}
taints:
- {key: k, value: v, effect: NoExecute}
podNetwork: 10.9.0.0/16
clusterDNS: 10.8.0.10
`
	got, err := Parse([]byte(full), Machine{Name: "vm", UUID: uuid})
	if err != nil {
		t.Fatal(err)
	}
	want := UserData{
		Server: "https://10.77.0.2:16443", Token: "abcdef." + secret, NodeName: "one",
		ProviderID: "millwright:///default/6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21",
		Labels:     map[string]string{"a": "b"},
		Taints:     []Taint{{Key: "k", Value: "v", Effect: "NoExecute"}},
		PodNetwork: "10.9.0.0/16", ClusterDNS: "10.8.0.10",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Machines that share user data use their own names.
func TestParse_UsesMachineName(t *testing.T) {
	nameless := strings.Replace(minimal, "nodeName: one\n", "", 1)
	got, err := Parse([]byte(nameless), Machine{Name: "vm"})
	if err != nil || got.NodeName != "vm" {
		t.Errorf("Parse = %+v, %v, want the node name vm", got, err)
	}
	var wrong *FieldError
	if _, err := Parse([]byte(nameless), Machine{Name: "VM"}); !errors.As(err, &wrong) || wrong.Field != "nodeName" {
		t.Errorf("Parse = %v, want an error about nodeName", err)
	}
}

func TestParse_NamesInvalidField(t *testing.T) {
	for name, test := range map[string]struct{ text, field string }{
		"NoServer":      {strings.Replace(minimal, "server", "#", 1), "server"},
		"PlainServer":   {strings.Replace(minimal, "https", "http", 1), "server"},
		"BadToken":      {strings.Replace(minimal, "abcdef.", "abcdef-", 1), "token"},
		"NoName":        {strings.Replace(minimal, "nodeName", "#", 1), "nodeName"},
		"BadName":       {strings.Replace(minimal, "one", "One", 1), "nodeName"},
		"BadAuthority":  {minimal + "certificateAuthority: none\n", "certificateAuthority"},
		"NoTaintKey":    {minimal + "taints: [{effect: NoSchedule}]\n", "taints[0].key"},
		"BadEffect":     {minimal + "taints: [{key: a, effect: NoSchedule}, {key: b, effect: Never}]\n", "taints[1].effect"},
		"UnknownField":  {minimal + "nodename: two\nserverr: x\n", "document"},
		"WrongType":     {minimal + "labels: [a]\n", "document"},
		"NoMapping":     {Header + "\n- a\n", "document"},
		"BadDNS":        {minimal + "clusterDNS: kube-dns\n", "clusterDNS"},
		"PodsIPv6First": {minimal + "podNetwork: fd78::/56,10.9.0.0/16\n", "podNetwork"},
		"PodsTwice":     {minimal + "podNetwork: 10.9.0.0/16,10.8.0.0/16\n", "podNetwork"},
		"PodsUnmasked":  {minimal + "podNetwork: 10.9.0.0/16,fd78::1/56\n", "podNetwork"},
		"UnknownUUID":   {minimal + "providerID: a/${uuid}\n", "providerID"},
		"TokenTwice":    {minimal + "token: abcdef." + secret + "\n", "document"},
		"TokenInAList":  {strings.Replace(minimal, "abcdef."+secret, "[abcdef."+secret+"]", 1), "document"},
		"TokenIsNoYAML": {minimal + "\ttoken: abcdef." + secret + "\n", "document"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(test.text), Machine{})
			var wrong *FieldError
			if !errors.As(err, &wrong) || wrong.Field != test.field {
				t.Fatalf("Parse = %v, want an error about %s", err, test.field)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error contains the token: %v", err)
			}
		})
	}
}

func TestParse_IgnoresOtherFormats(t *testing.T) {
	for _, text := range []string{"", "#cloud-config\nserver: x\n", "#!/bin/sh\n", " " + minimal} {
		if _, err := Parse([]byte(text), Machine{}); !errors.Is(err, ErrForeign) {
			t.Errorf("Parse(%q) = %v, want ErrForeign", text, err)
		}
	}
}

// The error describes the other format without any of its content.
func TestParse_DescribesOtherFormat(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "it is empty",
		"\n \n":                               "it is empty",
		"\n" + minimal:                        "there are blanks or empty lines before it",
		" " + minimal:                         "there are blanks or empty lines before it",
		"#cloud-config\ntoken: " + secret:     "it is a #cloud-config, for guests with cloud-init",
		"#!/bin/sh\n" + secret:                "it is a script, for guests with cloud-init",
		"## template: jinja\n#cloud-config\n": "it is a template of cloud-init",
		"#include\nhttps://example.com/" + secret:           "it is a list of addresses for cloud-init",
		"Content-Type: multipart/mixed; boundary=" + secret: "it is a MIME message, for guests with cloud-init",
		"MIME-Version: 1.0\n":                               "it is a MIME message, for guests with cloud-init",
		`{"ignition":{"version":"3.0.0"}}`:                  "it is JSON, perhaps for Ignition",
		"\x1f\x8b\x08" + secret:                             "it is compressed with gzip",
		"\x00\xff" + secret:                                 "it is not text",
		secret:                                              "it has a format that this guest does not support",
	} {
		_, err := Parse([]byte(text), Machine{})
		if !errors.Is(err, ErrForeign) || !strings.HasSuffix(err.Error(), ": "+want) || strings.Contains(err.Error(), secret) {
			t.Errorf("Parse(%q) = %v, want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(minimal))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, err := Parse(text, Machine{UUID: uuid})
		if wrong := (*FieldError)(nil); err != nil && !errors.Is(err, ErrForeign) && !errors.As(err, &wrong) {
			t.Errorf("%v is neither ErrForeign nor a *FieldError", err)
		}
	})
}
