package userdata_test

import (
	"bytes"
	"regexp"
	"testing"

	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap/userdata"
)

const (
	escapedToken = "%3C%3CBOOTSTRAP_TOKEN%3E%3E"
	escapedName  = "%3C%3CMACHINE_NAME%3E%3E"
)

func TestRender(t *testing.T) {
	const token = "abcdef.0123456789abcdef"
	cases := map[string]struct {
		reason            string
		data, name, token string
		want              string
	}{
		"none":             {"other text is left alone", "echo <<TOKEN>>", "m", token, "echo <<TOKEN>>"},
		"empty":            {"there may be no user data at all", "", "m", token, ""},
		"token":            {"", "--token=<<BOOTSTRAP_TOKEN>>;", "m", token, "--token=" + token + ";"},
		"name":             {"", "hostname <<MACHINE_NAME>>", "m", token, "hostname m"},
		"both, repeatedly": {"", "<<MACHINE_NAME>><<BOOTSTRAP_TOKEN>><<MACHINE_NAME>>", "m", token, "m" + token + "m"},
		"escaped":          {"user data may be a URL, as Ignition has it", "data:," + escapedName + "%20" + escapedToken, "m", token, "data:,m%20" + token},
		"escaped value":    {"the value is escaped like the placeholder", escapedName, "a b", token, "a+b"},
		"plain wins":       {"as in MCM, only one form is filled", "<<BOOTSTRAP_TOKEN>> " + escapedToken, "m", token, token + " " + escapedToken},
		"each by itself":   {"the plain form of one says nothing of the other", "<<BOOTSTRAP_TOKEN>> " + escapedName, "m", token, token + " m"},
		"no token":         {"without a target there is none", "<<BOOTSTRAP_TOKEN>> <<MACHINE_NAME>>", "m", "", "<<BOOTSTRAP_TOKEN>> m"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			given := []byte(tc.data)
			if got := string(userdata.Render(given, tc.name, tc.token)); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
			if string(given) != tc.data {
				t.Error("the class's Secret, which is the cache's, was changed")
			}
		})
	}
}

// The parts of names and tokens that matter to the property below: they can form no
// placeholder.
var dnsName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)

func FuzzRender(f *testing.F) {
	f.Add([]byte("<<BOOTSTRAP_TOKEN>>"), "m")
	f.Add([]byte("<<BOOTSTRAP_<<MACHINE_NAME>>TOKEN>>"), "m-1")
	f.Add([]byte(escapedToken+escapedName), "pool.z1")
	f.Add([]byte("<<<<MACHINE_NAME>>>>%3C%3CMACHINE_NAME%3E%3E"), "m")
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		if !dnsName.MatchString(name) {
			t.Skip("not a name of a machine")
		}
		const token = "abcdef.0123456789abcdef"
		got := userdata.Render(data, name, token)
		for _, form := range []struct{ plain, escaped, value string }{
			{userdata.PlaceholderToken, escapedToken, token},
			{userdata.PlaceholderMachineName, escapedName, name},
		} {
			had := bytes.Contains(data, []byte(form.plain))
			if bytes.Contains(got, []byte(form.plain)) {
				t.Errorf("%q is left in %q", form.plain, got)
			}
			if !had && bytes.Contains(got, []byte(form.escaped)) {
				t.Errorf("%q is left in %q", form.escaped, got)
			}
			if (had || bytes.Contains(data, []byte(form.escaped))) && !bytes.Contains(got, []byte(form.value)) {
				t.Errorf("%q is not in %q", form.value, got)
			}
		}
		if again := userdata.Render(got, name, ""); !bytes.Equal(again, got) && !bytes.Contains(data, []byte(userdata.PlaceholderMachineName)) {
			t.Errorf("a second rendering changes %q to %q", got, again)
		}
	})
}
