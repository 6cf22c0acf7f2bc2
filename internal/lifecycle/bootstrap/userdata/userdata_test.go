package userdata_test

import (
	"bytes"
	"errors"
	"regexp"
	"testing"

	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap/userdata"
	"github.com/millwright-dev/millwright/internal/placeholder"
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
		"none":             {"other text is not changed", "echo <<TOKEN>>", "m", token, "echo <<TOKEN>>"},
		"empty":            {"user data may be empty", "", "m", token, ""},
		"token":            {"", "--token=<<BOOTSTRAP_TOKEN>>;", "m", token, "--token=" + token + ";"},
		"name":             {"", "hostname <<MACHINE_NAME>>", "m", token, "hostname m"},
		"both, repeatedly": {"", "<<MACHINE_NAME>><<BOOTSTRAP_TOKEN>><<MACHINE_NAME>>", "m", token, "m" + token + "m"},
		"escaped":          {"user data may contain a URL, as in Ignition", "data:," + escapedName + "%20" + escapedToken, "m", token, "data:,m%20" + token},
		"escaped value":    {"the value is escaped like the placeholder", escapedName, "a b", token, "a+b"},
		"plain wins":       {"as in MCM, only one form is filled", "<<BOOTSTRAP_TOKEN>> " + escapedToken, "m", token, token + " " + escapedToken},
		"each by itself":   {"each placeholder has its own form", "<<BOOTSTRAP_TOKEN>> " + escapedName, "m", token, token + " m"},
		"base64":           {"encoded parts are filled, too", "content: PDxNQUNISU5FX05BTUU+Pg==", "m", token, "content: bQ=="},
		"no token":         {"without a target, there is no token", "<<BOOTSTRAP_TOKEN>> <<MACHINE_NAME>>", "m", "", "<<BOOTSTRAP_TOKEN>> m"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			given := []byte(tc.data)
			if got, err := userdata.Render(given, tc.name, tc.token); err != nil || string(got) != tc.want {
				t.Errorf("%s: %q, %v, want %q", tc.reason, got, err, tc.want)
			}
			if string(given) != tc.data {
				t.Error("the class's Secret in the cache was changed")
			}
		})
	}
}

// dnsName matches the names for which the property below holds, because they cannot form a placeholder.
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
		got, err := userdata.Render(data, name, token)
		if errors.Is(err, placeholder.ErrTooLarge) {
			t.Skip("a part of the data is too large when it is decompressed")
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, form := range []struct{ plain, escaped, value string }{
			{placeholder.Token, escapedToken, token},
			{placeholder.MachineName, escapedName, name},
		} {
			had := bytes.Contains(data, []byte(form.plain))
			if bytes.Contains(got, []byte(form.plain)) {
				t.Errorf("%q remains in %q", form.plain, got)
			}
			if !had && bytes.Contains(got, []byte(form.escaped)) {
				t.Errorf("%q remains in %q", form.escaped, got)
			}
			if (had || bytes.Contains(data, []byte(form.escaped))) && !bytes.Contains(got, []byte(form.value)) {
				t.Errorf("%q is not in %q", form.value, got)
			}
		}
		if again, err := userdata.Render(got, name, ""); err == nil && !bytes.Equal(again, got) && !bytes.Contains(data, []byte(placeholder.MachineName)) {
			t.Errorf("a second rendering changes %q to %q", got, again)
		}
	})
}
