package logging

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// klogLine is a line in the format that the documentation of klog describes.
var klogLine = regexp.MustCompile(`^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ [\w.-]+\.go:\d+\] .`)

// setUp returns a logger and its output.
func setUp(t *testing.T, flags Flags) (logr.Logger, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	log, err := flags.SetUp(&out)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(klog.ClearLogger)
	return log, &out
}

// TestLogging_Format checks that all loggers use the format that the flag selects.
func TestLogging_Format(t *testing.T) {
	text := func(line string) bool { return strings.Contains(line, "level=") && strings.Contains(line, "msg=") }
	for name, c := range map[string]struct {
		flags Flags
		check func(line string) bool
	}{
		"json":      {Flags{Format: "json"}, func(line string) bool { return json.Valid([]byte(line)) }},
		"text":      {Flags{Format: "text"}, text},
		"klog":      {Flags{Format: "klog"}, klogLine.MatchString},
		"MCM: text": {Flags{Format: "text", TextIsKlog: true}, klogLine.MatchString},
		"MCM: json": {Flags{Format: "json", TextIsKlog: true}, func(line string) bool { return json.Valid([]byte(line)) }},
	} {
		t.Run(name, func(t *testing.T) {
			c.flags.Verbosity = 1
			log, out := setUp(t, c.flags)
			log.Info("zero")
			log.V(1).Info("one")
			log.V(2).Info("two")
			log.Error(errors.New("cause"), "failed")
			klog.InfoS("structured")
			klog.V(2).Info("too verbose")
			klog.Warningf("formatted %d", 1)
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			var output []string
			for _, line := range lines {
				if !c.check(line) {
					t.Errorf("line %q", line)
				}
				for _, message := range []string{"zero", "one", "two", "failed", "structured", "too verbose", "formatted 1"} {
					if strings.Contains(line, message) {
						output = append(output, message)
					}
				}
			}
			if diff := cmp.Diff([]string{"zero", "one", "failed", "structured", "formatted 1"}, output); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLogging_KeepsSeverityOfKlog checks the levels of lines that libraries log with klog.
func TestLogging_KeepsSeverityOfKlog(t *testing.T) {
	exit := klog.OsExit
	t.Cleanup(func() { klog.OsExit = exit })
	klog.OsExit = func(int) {}
	for format, want := range map[string][4]string{
		"text": {"level=INFO", "level=WARN", "level=ERROR", "level=ERROR"},
		"json": {`"level":"INFO"`, `"level":"WARN"`, `"level":"ERROR"`, `"level":"ERROR"`},
		"klog": {"I", "W", "E", "F"},
	} {
		_, out := setUp(t, Flags{Format: format})
		for i, log := range []func(...any){klog.Info, klog.Warning, klog.Error, klog.Fatal} {
			out.Reset()
			log("[a] message")
			line, _, _ := strings.Cut(out.String(), "\n")
			found := strings.Contains(line, want[i])
			if format == "klog" {
				found = strings.HasPrefix(line, want[i])
			}
			if !found || !strings.Contains(line, "[a] message") {
				t.Errorf("%s: line %q, want %s", format, line, want[i])
			}
		}
	}
}

// TestLogging_OmitsRequestBodies checks that Secrets sent and received by client-go are not logged at any verbosity.
func TestLogging_OmitsRequestBodies(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"received-secret"}}`)
	}))
	t.Cleanup(api.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sent-secret"}}
	for _, format := range []string{"text", "json", "klog"} {
		log, out := setUp(t, Flags{Format: format, Verbosity: 10})
		if _, err := client.CoreV1().Secrets("default").Create(logr.NewContext(t.Context(), log), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		log.WithValues("body", "sent-secret").Info("derived")
		output := out.String()
		if !strings.Contains(output, "Request Body") || !strings.Contains(output, "derived") || strings.Contains(output, "sent-secret") || strings.Contains(output, "received-secret") {
			t.Errorf("%s: logged:\n%s", format, output)
		}
	}
}

// TestLogging_LostLeaseIsNotErrorOnShutdown checks that losing the lease is not logged as an error during a requested shutdown, but is
// otherwise.
func TestLogging_LostLeaseIsNotErrorOnShutdown(t *testing.T) {
	var out bytes.Buffer
	log, err := (&Flags{Format: "text"}).SetUp(&out)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(klog.ClearLogger)
	const stopping = "error received after stop sequence was engaged"
	lost := errors.New("leader election lost")
	log.Error(lost, stopping)
	log.WithName("named").WithValues("a", "b").Error(lost, stopping)
	if out.Len() != 0 {
		t.Errorf("logged on an orderly shutdown:\n%s", &out)
	}
	log.Error(lost, "something else")
	log.Error(errors.New("disk full"), stopping)
	log.Error(nil, stopping)
	if got := strings.Count(out.String(), "\n"); got != 3 {
		t.Errorf("%d of 3 real errors are logged:\n%s", got, &out)
	}
}

// TestLogging_CanceledIsNotErrorOnShutdown checks that operations canceled at shutdown are not logged as errors, however deeply the
// cause is wrapped.
func TestLogging_CanceledIsNotErrorOnShutdown(t *testing.T) {
	var out bytes.Buffer
	log, err := (&Flags{Format: "text"}).SetUp(&out)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(klog.ClearLogger)
	log.Error(fmt.Errorf("the rate limiter returned an error: %w", context.Canceled), "Error retrieving lease lock", "lock", "a/b")
	log.Info("Failed to renew lease", "err", context.Canceled)
	if output := out.String(); strings.Count(output, "level=INFO") != 2 || strings.Contains(output, "level=ERROR") {
		t.Errorf("logged:\n%s", output)
	}
	out.Reset()
	log.Error(context.DeadlineExceeded, "Error retrieving lease lock")
	if output := out.String(); !strings.Contains(output, "level=ERROR") {
		t.Errorf("logged:\n%s", output)
	}
}

// TestLogging_VerbosityForms checks every common way to specify the verbosity.
func TestLogging_VerbosityForms(t *testing.T) {
	for _, args := range [][]string{{"--v=2"}, {"--v", "2"}, {"-v=2"}, {"-v", "2"}, {"-v2"}} {
		flags, set := &Flags{}, pflag.NewFlagSet("program", pflag.ContinueOnError)
		flags.Add(set)
		if err := set.Parse(args); err != nil || flags.Verbosity != 2 {
			t.Errorf("%v: verbosity %d, %v", args, flags.Verbosity, err)
		}
	}
}

// TestLogging_VerbosityHasNoUpperLimit checks that high values such as 99 are accepted, as by klog.
func TestLogging_VerbosityHasNoUpperLimit(t *testing.T) {
	for verbosity, want := range map[int]bool{99: true, -1: false} {
		t.Cleanup(klog.ClearLogger)
		_, err := (&Flags{Format: "text", Verbosity: verbosity}).SetUp(io.Discard)
		if (err == nil) != want {
			t.Errorf("--v=%d: %v", verbosity, err)
		}
	}
}
