package instrument_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/driver/status"
)

// failWith makes a call that fails with err, and returns the log and the error of the decorator.
func failWith(t *testing.T, secret map[string][]byte, err error) (log string, got error) {
	t.Helper()
	ctx, buffer := logged(t)
	d := instrument.Wrap(script{do: func(context.Context) error { return err }}.required(), instrument.Options{})
	_, got = d.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: machine, MachineClass: class, Secret: &corev1.Secret{Data: secret}})
	return buffer.String(), got
}

const (
	password = "p4ss wörd/+\"x\"~~~???>>>"
	userData = "#cloud-config\nwrite_files:\n- content: abcdef.0123456789abcdef\n"
	account  = `{"type": "service_account", "private_key": "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\n-----END KEY-----\n", "nested": [{"pin": "98765432"}], "project_id": "shoots-of-acme"}`
)

func TestDriver_RedactsSecrets(t *testing.T) {
	quoted, err := json.Marshal(password)
	if err != nil {
		t.Fatal(err)
	}
	secret := map[string][]byte{
		"password": []byte(password), "userData": []byte(userData), "serviceAccountJSON": []byte(account),
		"padded": []byte("  token-with-spaces \n"), "short": []byte("abc"), "flag": []byte("true"), "empty": nil,
		"itself": []byte("tantantan"), "url": []byte("https://bob:hunter2@example.com"), "hookURL": []byte("https://hooks.example.com/T0/abcdefghijklmnopqrstuvwx"), "first": []byte("overlapping-one"), "second": []byte("one-overlapping"),
	}
	tests := map[string]struct{ text, forbidden string }{
		"raw":                 {"login with " + password + " failed", password},
		"twice":               {password + password, "wörd"},
		"base64":              {"Authorization: " + base64.StdEncoding.EncodeToString([]byte(password)), base64.RawStdEncoding.EncodeToString([]byte(password))},
		"base64 for URLs":     {"?t=" + base64.URLEncoding.EncodeToString([]byte(password)), base64.RawURLEncoding.EncodeToString([]byte(password))},
		"query":               {"GET /?p=" + url.QueryEscape(password), url.QueryEscape(password)},
		"path":                {"GET /" + url.PathEscape(password), url.PathEscape(password)},
		"quoted":              {fmt.Sprintf("password %q refused", password), "rd/+"},
		"JSON":                {"body " + string(quoted), "rd/+"},
		"user data":           {"cannot parse " + userData, "0123456789abcdef"},
		"line of user data":   {"line 3: - content: abcdef.0123456789abcdef", "0123456789abcdef"},
		"base64 of user data": {base64.StdEncoding.EncodeToString([]byte(userData)), base64.StdEncoding.EncodeToString([]byte(userData))[:40]},
		"key in JSON":         {"bad key MIIEvQIBADANBgkqhkiG9w0", "MIIEvQ"},
		"deep in JSON":        {"pin 98765432 is wrong", "98765432"},
		"trimmed":             {"token token-with-spaces is wrong", "with-spaces"},
		"overlapping":         {"x overlapping-one-overlapping y", "overlapping"},
		"overlapping itself":  {"x tantantantan x", "tan x"},
		"after escapes":       {`user%3Dbob%26pin%3D98765432\n98765432\u003d98765432`, "98765432"},
		"URL with a password": {"cannot parse https://bob:hunter2@example.com", "hunter2"},
		"URL with a token":    {"POST https://hooks.example.com/T0/abcdefghijklmnopqrstuvwx failed", "abcdefghijklmnopqrstuvwx"},
		"adjacent":            {"98765432" + password + "98765432", "98765432"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for form, given := range map[string]error{
				"plain":         errors.New(tt.text),
				"status":        status.Error(codes.Unauthenticated, tt.text),
				"wrapped":       fmt.Errorf("creating: %w", status.Error(codes.Unauthenticated, tt.text)),
				"cause":         status.WrapError(codes.Unauthenticated, "login failed", errors.New(tt.text)),
				"deep in joins": errors.Join(io.EOF, fmt.Errorf("a: %w", errors.Join(io.ErrNoProgress, errors.New(tt.text)))),
				"status text":   errors.New(status.New(codes.Unauthenticated, tt.text).Error()),
			} {
				log, got := failWith(t, secret, given)
				if status.Code(got) != status.Code(given) {
					t.Errorf("%s: got code %v", form, status.Code(got))
				}
				for e := got; e != nil; e = errors.Unwrap(e) {
					if s := fmt.Sprintf("%s %v %+v %#v", e, e, e, e); strings.Contains(s, tt.forbidden) {
						t.Errorf("%s: %q is in the error %q", form, tt.forbidden, s)
					}
				}
				if s, _ := status.FromError(got); strings.Contains(s.Message(), tt.forbidden) {
					t.Errorf("%s: %q is in the message %q", form, tt.forbidden, s.Message())
				}
				if strings.Contains(log, tt.forbidden) {
					t.Errorf("%s: %q is in the log %s", form, tt.forbidden, log)
				}
			}
		})
	}
}

// TestDriver_RedactsSecretWithManyValues: a Secret with many values, as keys, as lines or in JSON, does not make calls expensive,
// and none of its values is in an error or the log. The error keeps its code.
func TestDriver_RedactsSecretWithManyValues(t *testing.T) {
	const many, value = 100_000, "v-12345-of-many"
	var list []string
	values := map[string][]byte{}
	for i := range many {
		text := strings.Replace(value, "12345", fmt.Sprintf("%05d", i), 1)
		values[text[2:7]], list = []byte(text), append(list, text)
	}
	inJSON, err := json.Marshal(map[string]any{"deep": list})
	if err != nil {
		t.Fatal(err)
	}
	for name, secret := range map[string]map[string][]byte{
		"values": values, "lines": {"userData": []byte(strings.Join(list, "\n"))}, "JSON": {"account": inJSON},
	} {
		t.Run(name, func(t *testing.T) {
			var log string
			var got error
			allocations := testing.AllocsPerRun(1, func() { log, got = failWith(t, secret, status.Error(codes.NotFound, "there is no "+value)) })
			if strings.Contains(log, value) || strings.Contains(got.Error(), value) || status.Code(got) != codes.NotFound {
				t.Errorf("got error %v and log:\n%.1000s", got, log)
			}
			if allocations > 2*many+most {
				t.Errorf("got %.0f allocations for one error", allocations)
			}
		})
	}
}

// most is the maximum number of allocations for the searched values, in addition to those of the JSON parser.
const most = 100_000

func TestRedaction_KeepsOtherText(t *testing.T) {
	secret := map[string][]byte{
		"password": []byte("hunter22"), "flag": []byte("true"), "short": []byte("abc1234"), "word": []byte("instance"),
		"tenantName": []byte("shoots-of-acme"), "username": []byte("technical-user"), "domain_name": []byte("Default-Domain"),
		"authURL": []byte("https://keystone.example.com:5000/v3"), "OS_REGION_NAME": []byte("region-1"), "account.json": []byte(account),
	}

	harmless := fmt.Errorf("the abc1234 is true: 10 instances of technical-user in shoots-of-acme, Default-Domain, region-1 at "+
		"https://keystone.example.com:5000/v3/auth, %w", io.EOF)
	if _, got := failWith(t, secret, harmless); got != harmless {
		t.Errorf("got %#v for an error without secrets", got)
	}

	inner := status.WrapError(codes.Unauthenticated, "user bob, password hunter22", io.ErrUnexpectedEOF)
	log, got := failWith(t, secret, fmt.Errorf("login: %w", inner))
	const want = "user bob, password [redacted]"
	if s, _ := status.FromError(got); s.Code() != codes.Unauthenticated || s.Message() != want {
		t.Errorf("got %v %q, want Unauthenticated %q", s.Code(), s.Message(), want)
	}
	for _, target := range []error{io.ErrUnexpectedEOF, status.New(codes.Unauthenticated, ""), inner} {
		if !errors.Is(got, target) {
			t.Errorf("errors.Is no longer finds %v", target)
		}
	}
	if _, twice := failWith(t, secret, errors.New("password hunter22hunter22!")); !strings.Contains(twice.Error(), "password [redacted]!") {
		t.Errorf("got %q for two adjacent secrets", twice)
	}
	if errors.Is(got, io.EOF) || errors.Is(got, status.New(codes.Aborted, "")) {
		t.Error("errors.Is finds an error that is not in the chain")
	}
	if !strings.Contains(log, want) {
		t.Errorf("log does not contain the error: %s", log)
	}
}

// FuzzDriver_RedactsSecrets: an error never contains a secret value as a word, whatever text surrounds it.
func FuzzDriver_RedactsSecrets(f *testing.F) {
	f.Add("before ", "hunter22", " after")
	f.Add("~s3~hunter2", "hunter22", "2")
	f.Add("~s3~~s3~", "~s3~~s3~", "~s3~")
	f.Add("[", "]]]]", "[redacted]")
	f.Add("~s3~", "[redacted]", "~s3~[redacted]")
	f.Add("~s3~[red", "~s3~[red", "acted]")
	f.Fuzz(func(t *testing.T, before, value, after string) {
		// This makes the value neither short, nor part of a longer word, nor part of the marker.
		value = "~s3~" + value + "~s3~"
		secret := map[string][]byte{"v": []byte(value)}
		log, got := failWith(t, secret, status.Error(codes.Aborted, before+value+after))
		s, _ := status.FromError(got)
		if s.Code() != codes.Aborted {
			t.Errorf("got code %v", s.Code())
		}
		if strings.Contains(s.Message(), value) || strings.Contains(log, value) {
			t.Errorf("%q is in %q or %s", value, s.Message(), log)
		}
	})
}

// BenchmarkDriver_NotFound measures the most frequent failure, NotFound before a creation, with user data of typical size.
func BenchmarkDriver_NotFound(b *testing.B) {
	var lines strings.Builder
	for i := range 400 {
		fmt.Fprintf(&lines, "line %d of a script that sets up a kubelet\n", i)
	}
	secret := &corev1.Secret{Data: map[string][]byte{"userData": []byte(lines.String()), "password": []byte(password)}}
	d := instrument.Wrap(script{do: func(context.Context) error {
		return status.Error(codes.NotFound, "no VM for ns/m with the tags of the cluster")
	}}.required(), instrument.Options{})
	req := &driver.CreateMachineRequest{Machine: machine, MachineClass: class, Secret: secret}
	for b.Loop() {
		_, _ = d.CreateMachine(b.Context(), req)
	}
}
