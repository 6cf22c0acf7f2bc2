package placeholder_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/internal/placeholder"
)

var values = []placeholder.Value{{placeholder.MachineName, "pool-1"}, {placeholder.Token, "abcdef.0123456789abcdef"}}

const (
	given    = "#cloud-config\n# a comment that is not changed, and makes the text longer than a line of base64\nhostname: <<MACHINE_NAME>>\nruncmd: [join --token <<BOOTSTRAP_TOKEN>>]\n"
	expected = "#cloud-config\n# a comment that is not changed, and makes the text longer than a line of base64\nhostname: pool-1\nruncmd: [join --token abcdef.0123456789abcdef]\n"
)

func zipped(text string) string {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return out.String()
}

func unzipped(t *testing.T, text string) string {
	t.Helper()
	r, err := gzip.NewReader(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(plain)
}

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func decoded(t *testing.T, text string) string {
	t.Helper()
	plain, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	return string(plain)
}

// wrapped returns base64 with lines of the given length, like base64 -w.
func wrapped(text string, width int, separator string) string {
	var lines []string
	for text = encoded(text); len(text) > width; text = text[width:] {
		lines = append(lines, text[:width])
	}
	return strings.Join(append(lines, text), separator)
}

func fill(t *testing.T, data string) string {
	t.Helper()
	filled, err := placeholder.Fill([]byte(data), values...)
	if err != nil {
		t.Fatal(err)
	}
	return string(filled)
}

func TestFill_Compressed(t *testing.T) {
	if got := unzipped(t, fill(t, zipped(given))); got != expected {
		t.Errorf("gzip: %q", got)
	}
	if got := unzipped(t, decoded(t, fill(t, encoded(zipped(given))))); got != expected {
		t.Errorf("gzip in base64: %q", got)
	}
	file := "#cloud-config\nwrite_files:\n- {path: /a, encoding: gz+b64, content: " + encoded(zipped(given)) + "}\n"
	got := unzipped(t, fill(t, zipped(file)))
	content, _, _ := strings.Cut(got[strings.Index(got, "content: ")+len("content: "):], "}")
	if unzipped(t, decoded(t, content)) != expected {
		t.Errorf("a compressed file in compressed data: %q", got)
	}
}

func TestFill_Base64(t *testing.T) {
	for name, around := range map[string][2]string{
		"all":                {"", ""},
		"with a newline":     {"", "\n"},
		"a file":             {"write_files:\n- path: /etc/long/path\n  encoding: b64\n  content: ", "\n  owner: root\n"},
		"a quoted value":     {`{"content":"`, `"}`},
		"Ignition":           {`{"source":"data:text/plain;charset=utf-8;base64,`, `","mode":420}`},
		"a command":          {"echo ", "|base64 -d >/etc/a\n"},
		"before a short end": {"base64 -d <<EOF\n", "\nDONE\n"},
	} {
		t.Run(name, func(t *testing.T) {
			want := around[0] + encoded(expected) + around[1]
			if got := fill(t, around[0]+encoded(given)+around[1]); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// The layout of lines is kept, so that the text is still valid in a YAML block or a MIME message.
func TestFill_Base64OnSeveralLines(t *testing.T) {
	const mime = "Content-Type: text/cloud-config\nContent-Transfer-Encoding: base64\n\n"
	for name, test := range map[string]struct {
		before    string
		width     int
		separator string
		after     string
	}{
		"base64":         {"", 76, "\n", "\n"},
		"openssl":        {"", 64, "\n", "\n"},
		"CRLF":           {"a:\r\n", 76, "\r\n", "\r\nb\r\n"},
		"YAML":           {"content: |\n    ", 76, "\n    ", "\n    \nowner: root\n"},
		"a longer key":   {"content: |\n    ", 76, "\n    ", "\nowner: root\n"},
		"less indented":  {"- |\n    ", 76, "\n    ", "\nend\n"},
		"MIME":           {mime, 76, "\n", "\n\n--boundary--\n"},
		"MIME with CRLF": {strings.ReplaceAll(mime, "\n", "\r\n"), 76, "\r\n", "\r\n--boundary--\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			want := test.before + wrapped(expected, test.width, test.separator) + test.after
			if got := fill(t, test.before+wrapped(given, test.width, test.separator)+test.after); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// Data without placeholders is not changed by a single byte, however it looks.
func TestFill_LeavesOthers(t *testing.T) {
	for _, text := range []string{
		"", "\x1f\x8b", "\x1f\x8b\x08broken", zipped(given)[:40], zipped("#cloud-config\n"), encoded("#cloud-config\nhostname: fixed\n"),
		wrapped(expected, 76, "\n"), strings.Repeat("A", 76) + "\n" + strings.Repeat("B", 77), "/usr/local/share/ca/certificates/one",
		encoded(given)[1:], "<<TOKEN>>", strings.Repeat("A", 76) + "\n\n\n" + strings.Repeat("A", 76) + "\n",
	} {
		if got := fill(t, text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// Without a value, a placeholder stays: another part of Millwright fills it.
func TestFill_OnlyGivenValues(t *testing.T) {
	got, err := placeholder.Fill([]byte(encoded(given+placeholder.ProviderID)), values[0])
	if err != nil {
		t.Fatal(err)
	}
	if plain := decoded(t, string(got)); strings.Count(plain, "<<") != 2 || strings.Contains(plain, placeholder.MachineName) {
		t.Errorf("got %q", plain)
	}
}

func TestFill_RefusesTooLargeData(t *testing.T) {
	bomb := zipped(strings.Repeat("0", 17<<20))
	for _, data := range []string{bomb, "content: " + encoded(bomb)} {
		if got, err := placeholder.Fill([]byte(data), values...); !errors.Is(err, placeholder.ErrTooLarge) {
			t.Errorf("Fill = %d bytes, %v, want ErrTooLarge", len(got), err)
		}
	}
}

func FuzzFill(f *testing.F) {
	f.Add([]byte(given))
	f.Add([]byte(zipped(given)))
	f.Add([]byte("content: |\n  " + wrapped(given, 76, "\n  ") + "\nDONE\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		filled, err := placeholder.Fill(data, values...)
		if !bytes.Equal(before, data) {
			t.Error("the data in the cache was changed")
		}
		if err != nil {
			return
		}
		if bytes.Contains(filled, []byte(placeholder.Token)) {
			t.Errorf("a placeholder remains in %q", filled)
		}
	})
}
