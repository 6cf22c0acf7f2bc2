package conformance_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/conformance"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
)

// check runs all rules on a fake clock.
func check(t *testing.T, initialize bool, breakIt func(*world) full) (report conformance.Report) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, initialize)
		d := w.full
		if breakIt != nil {
			d = breakIt(w)
		}
		provider := w.provider(d)
		provider.Uninitialized = initialize
		var err error
		if report, err = conformance.Check(t.Context(), provider, conformance.Options{Timeout: 20 * time.Second}); err != nil {
			t.Fatal(err)
		}
	})
	return report
}

func TestRun_OfSim(t *testing.T) {
	for name, initialize := range map[string]bool{"plain": false, "with initialization": true} {
		t.Run(name, func(t *testing.T) {
			report := check(t, initialize, nil)
			for _, result := range report.Results {
				wantSkipped := !initialize && regexp.MustCompile(`nitializ`).MatchString(result.Title)
				if result.Outcome == conformance.Failed || result.Outcome == conformance.Skipped && !wantSkipped {
					t.Errorf("%+v", result)
				}
			}
			if len(report.Left) > 0 {
				t.Errorf("left: %v", report.Left)
			}
		})
	}
}

// An interrupted run deletes the machines of the current rule.
func TestRun_DeletesMachinesWhenInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, false)
		ctx, cancel := context.WithCancel(t.Context())
		d := patch(w, func(p *patched) {
			onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (createResp, error) {
				resp, err := next(context.WithoutCancel(ctx), req)
				cancel()
				return resp, err
			})(w, p)
		})
		report, err := conformance.Check(ctx, w.provider(d), conformance.Options{})
		if err != nil || !report.Interrupted || report.Conforms() || report.Created != 1 {
			t.Errorf("%+v, %v", report, err)
		}
		if ids, _ := w.instances(t.Context()); len(ids) != 1 { // the VM that fills a pool
			t.Errorf("left: %v", ids)
		}
	})
}

// The report lists machines that cannot be deleted, without the values of the Secret.
func TestReport_ListsRemainingMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, false)
		d := patch(w, func(p *patched) {
			p.remove = func(context.Context, *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
				return nil, status.Error(codes.Unavailable, "no response for "+token)
			}
		})
		report, err := conformance.Check(t.Context(), w.provider(d), conformance.Options{Run: regexp.MustCompile("R01|R29"), Timeout: time.Minute, Name: "mine"})
		if err != nil || report.Conforms() || len(report.Left) != 2 || report.Count(conformance.Failed) != 1 {
			t.Fatalf("%+v, %v", report, err)
		}
		var text bytes.Buffer
		for _, result := range report.Results {
			if err := result.Print(&text); err != nil {
				t.Fatal(err)
			}
		}
		if err := report.PrintSummary(&text); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"ns/cf-mine-r01-a sim:///ns/cf-mine-r01-a/", "no response for [redacted]", "failed    R29 ", "delete them manually"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("report lacks %q:\n%s", want, &text)
			}
		}
		if strings.Contains(text.String(), token) {
			t.Errorf("report contains the token:\n%s", &text)
		}
	})
}

// If the driver rejects a class or a Secret, no VM remains and the run does not wait.
func TestRun_StopsWhenClassIsRejected(t *testing.T) {
	for name, change := range map[string]func(*conformance.Provider){
		"class":  func(p *conformance.Provider) { p.Class = classOf(`{"pool":7}`) },
		"Secret": func(p *conformance.Provider) { p.Secret = secretOf("token", "not-the-token") },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, false)
			provider := w.provider(w.full)
			change(&provider)
			begin := time.Now()
			report, err := conformance.Check(t.Context(), provider, conformance.Options{Run: regexp.MustCompile("R01")})
			if err != nil || report.Count(conformance.Failed) != 1 || len(report.Left) > 0 {
				t.Errorf("%s: %+v, %v", name, report, err)
			}
			if waited := time.Since(begin); waited > time.Second {
				t.Errorf("%s: waited %v", name, waited)
			}
		})
	}
}

// The report immediately names a machine that the driver may not delete.
func TestReport_NamesMachineThatCannotBeDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, false)
		d := patch(w, func(p *patched) {
			p.remove = func(context.Context, *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
				return nil, status.Error(codes.PermissionDenied, "deletion is forbidden")
			}
		})
		begin := time.Now()
		report, err := conformance.Check(t.Context(), w.provider(d), conformance.Options{Run: regexp.MustCompile("R01"), Name: "mine"})
		if err != nil || len(report.Left) != 1 || !strings.Contains(report.Left[0], "cf-mine-r01-a") || !strings.Contains(report.Left[0], "deletion is forbidden") {
			t.Errorf("%+v, %v", report, err)
		}
		if waited := time.Since(begin); waited > time.Second {
			t.Errorf("waited %v", waited)
		}
	})
}

// The run creates no more machines than allowed.
func TestRun_RespectsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, false)
		report, err := conformance.Check(t.Context(), w.provider(w.full), conformance.Options{MaxMachines: 5})
		if err != nil || report.Count(conformance.Failed) > 0 || report.Created > 5 {
			t.Errorf("%+v, %v", report, err)
		}
		entries, err := w.cloud.Journal()
		made := 0
		for _, entry := range entries {
			if entry.Effect == sim.Created {
				made++
			}
		}
		if err != nil || made == 0 || made > 5 {
			t.Errorf("created %d machines, want at most 5: %v", made, err)
		}
	})
}

// A driver that gives machines of one name one VM is recognized without GetMachineStatus.
func TestRun_SeparatesNamespacesWithoutStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		breakIt func(*world, *patched)
		want    conformance.Outcome
	}{
		"separate":    {func(*world, *patched) {}, conformance.Passed},
		"one for all": {oneNamespace, conformance.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, false)
				d := patch(w, func(p *patched) {
					tc.breakIt(w, p)
					p.find = func(context.Context, *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
						return nil, status.Error(codes.Unimplemented, "the provider does not report VMs")
					}
				})
				report, err := conformance.Check(t.Context(), w.provider(d), conformance.Options{Run: regexp.MustCompile("R03"), Timeout: time.Minute})
				if err != nil || report.Count(tc.want) != 1 {
					t.Errorf("%+v, %v; want %s", report, err, tc.want)
				}
			})
		})
	}
}

// A slow provider gets a verdict: a rule that exceeds its limit is skipped and its machines are deleted, and a later
// run checks only the rules that have no result yet.
func TestRun_LimitsAndResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, false)
		d := patch(w, func(p *patched) {
			onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (createResp, error) {
				resp, err := next(ctx, req)
				if !strings.Contains(req.Machine.Name, "-r02-") {
					return resp, err
				}
				select {
				case <-time.After(time.Hour):
					return resp, err
				case <-ctx.Done():
					return nil, status.Error(codes.DeadlineExceeded, "the provider is slow")
				}
			})(w, p)
		})
		options := conformance.Options{Run: regexp.MustCompile("R0[12]"), Timeout: 2 * time.Hour, RuleTimeout: 10 * time.Minute}
		first, err := conformance.Check(t.Context(), w.provider(d), options)
		if err != nil || first.Results[0].Outcome != conformance.Passed || first.Results[1].Outcome != conformance.Skipped || first.Interrupted || len(first.Left) > 0 {
			t.Fatalf("%+v, %v", first, err)
		}
		if ids, _ := w.instances(t.Context()); len(ids) != 1 { // the VM that fills a pool
			t.Errorf("left: %v", ids)
		}
		options.RuleTimeout, options.Earlier = 90*time.Minute, first.Results
		second, err := conformance.Check(t.Context(), w.provider(d), options)
		if err != nil || second.Count(conformance.Passed) != 2 || second.Created != 1 {
			t.Errorf("%+v, %v", second, err)
		}
	})
}

// A rule that failed in an earlier run is part of the verdict, and the rules that need it are skipped.
func TestRun_ResumesWithFailures(t *testing.T) {
	w := newWorld(t, false)
	earlier := []conformance.Result{{Rule: "R01", Outcome: conformance.Failed, Details: []string{"no VM"}}}
	report, err := conformance.Check(t.Context(), w.provider(w.full), conformance.Options{Run: regexp.MustCompile("R0[12]"), Earlier: earlier})
	if err != nil || report.Conforms() || report.Count(conformance.Failed) != 1 || report.Count(conformance.Skipped) != 1 || report.Created != 0 {
		t.Errorf("%+v, %v", report, err)
	}
}

func TestCheck_RejectsInvalidOptions(t *testing.T) {
	w := newWorld(t, false)
	for name, provider := range map[string]conformance.Provider{"no driver": {Class: classOf(spec)}, "no class": {Driver: w.full}} {
		if _, err := conformance.Check(t.Context(), provider, conformance.Options{}); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
	if _, err := conformance.Check(t.Context(), w.provider(w.full), conformance.Options{MaxMachines: -1}); err == nil {
		t.Error("a negative limit: got no error")
	}
}

// A report contains no value of any Secret, in whatever encoding a driver writes it.
func TestReport_ContainsNoSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, false)
		provider := w.provider(patch(w, func(p *patched) {
			fail := func(secret *corev1.Secret) error {
				pin := string(secret.Data["pin"])
				text := fmt.Sprintf("%s %s %s %s", secret.Data["token"], pin, base64.StdEncoding.EncodeToString([]byte(pin)), secret.Data["account"])
				return status.Error(codes.OutOfRange, text)
			}
			p.create = func(_ context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
				return nil, fail(req.Secret)
			}
			p.find = func(_ context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
				return nil, fail(req.Secret)
			}
			p.locate = func(_ context.Context, req *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error) {
				panic(fail(req.Secret))
			}
		}))
		provider.Secret = secretOf("token", token, "pin", "98765-01234")
		provider.Variants.BadSecret = secretOf("token", "not-the-token", "pin", "43210-56789")
		provider.Variants.OtherAccount = secretOf("token", token, "account", "secret-account")
		report, err := conformance.Check(t.Context(), provider, conformance.Options{Run: regexp.MustCompile("R01|R13|R39|R74|R76|R84|R86|R88"), Timeout: time.Minute})
		if err != nil || report.Count(conformance.Failed) < 4 {
			t.Fatalf("%+v, %v", report, err)
		}
		text := fmt.Sprintf("%+v", report)
		for _, secret := range []string{token, "98765-01234", "43210-56789", "not-the-token", "secret-account", base64.RawStdEncoding.EncodeToString([]byte("43210-56789"))} {
			if strings.Contains(text, secret) {
				t.Errorf("report contains %q:\n%s", secret, text)
			}
		}
	})
}
