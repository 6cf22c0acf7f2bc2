package instance_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// resultsOfCodes is the table of error codes of the design, with one column for each situation in which a
// driver is called. The terms:
//
//	exists     the instance is complete
//	created    an instance was created
//	lost       the instance is given up
//	gone       the deletion is complete
//	remains    the deletion has begun and is checked again soon
//	soon       retried after 1s doubling to 1m
//	medium     retried after 5s doubling to 3m
//	patient    retried after 5s doubling to 10m
//	slow       retried after 3m doubling to 30m
//	exhausted  retried every 10m
const resultsOfCodes = `
code                create     initialize  status     status,id  delete   status,deleting
OK                  created    exists      exists     exists     gone     remains
Canceled            soon       soon        soon       soon       soon     soon
Unknown             soon       soon        soon       soon       soon     soon
InvalidArgument     slow       slow        slow       slow       slow     slow
DeadlineExceeded    soon       soon        soon       soon       soon     soon
NotFound            soon       soon        created    lost       gone     gone
AlreadyExists       slow       slow        slow       slow       slow     slow
PermissionDenied    slow       slow        slow       slow       slow     slow
ResourceExhausted   exhausted  soon        slow       slow       slow     slow
FailedPrecondition  slow       slow        slow       slow       slow     slow
Aborted             soon       soon        soon       soon       soon     soon
OutOfRange          slow       slow        soon       soon       slow     soon
Unimplemented       slow       exists      created    exists     slow     gone
Internal            medium     medium      medium     medium     patient  medium
Unavailable         soon       soon        soon       soon       soon     soon
DataLoss            medium     medium      medium     medium     patient  medium
Unauthenticated     medium     medium      medium     medium     patient  medium
Uninitialized       created    soon        exists     exists     remains  remains
`

// situations make a method of the driver return an error, and call the engine.
var situations = map[string]func(d *fake.Driver, p *process, err error) (func(instance.Request) any, instance.Request){
	"create": func(d *fake.Driver, p *process, err error) (func(instance.Request) any, instance.Request) {
		d.OnCreate(fake.Always[driver.CreateMachineRequest](&driver.CreateMachineResponse{ProviderID: "sim://1", NodeName: "node-1"}, err))
		return p.ensure, request("m")
	},
	"initialize": func(d *fake.Driver, p *process, err error) (func(instance.Request) any, instance.Request) {
		d.OnStatus(uninitialized)
		d.OnInitialize(fake.Always[driver.InitializeMachineRequest](&driver.InitializeMachineResponse{}, err))
		return p.ensure, request("m")
	},
	"status": func(d *fake.Driver, p *process, err error) (func(instance.Request) any, instance.Request) {
		d.OnStatus(answering(err))
		return p.ensure, request("m")
	},
	"status,id": func(d *fake.Driver, p *process, err error) (func(instance.Request) any, instance.Request) {
		d.OnStatus(answering(err))
		return p.ensure, known("m")
	},
	"delete": func(d *fake.Driver, p *process, err error) (func(instance.Request) any, instance.Request) {
		d.OnDelete(fake.Always[driver.DeleteMachineRequest](&driver.DeleteMachineResponse{}, err))
		return p.remove, known("m")
	},
	"status,deleting": func(d *fake.Driver, p *process, err error) (func(instance.Request) any, instance.Request) {
		d.OnStatus(answering(err))
		return p.remove, known("m")
	},
}

func TestEngine_ResultsByCode(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(resultsOfCodes), "\n")
	columns := strings.Fields(lines[0])[1:]
	if len(columns) != len(situations) || len(lines)-1 != len(codes.All()) {
		t.Fatalf("the table has %d columns and %d rows; there are %d situations and %d codes", len(columns), len(lines)-1, len(situations), len(codes.All()))
	}
	for _, line := range lines[1:] {
		fields := strings.Fields(line)
		code := codes.StringToCode(fields[0])
		if code.String() != fields[0] {
			t.Fatalf("%s is not a code", fields[0])
		}
		for i, column := range columns {
			t.Run(column+"/"+fields[0], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { checkResult(t, column, code, fields[i+1]) })
			})
		}
	}
}

// waitTimeout is the time after the first failure and after many failures, by term.
var waitTimeout = map[string][2]time.Duration{
	"soon":      {time.Second, time.Minute},
	"remains":   {time.Second, time.Minute},
	"medium":    {5 * time.Second, 3 * time.Minute},
	"patient":   {5 * time.Second, 10 * time.Minute},
	"slow":      {3 * time.Minute, 30 * time.Minute},
	"exhausted": {10 * time.Minute, 10 * time.Minute},
}

func checkResult(t *testing.T, situation string, code codes.Code, want string) {
	d := newDriver()
	p := start(t, d)
	question, req := situations[situation](d, p, status.Error(code, "scripted"))
	result := ask(question, req)

	if got := outcome(result); got != want {
		if _, tried := waitTimeout[want]; !tried || got != "failed" {
			t.Fatalf("result %q, want %q", got, want)
		}
		if failure := is[instance.Failed](t, result).Failure; failure.Code != code {
			t.Errorf("the failure's code is %v", failure.Code)
		}
	}
	limits, tried := waitTimeout[want]
	if !tried {
		if again := retry(result); again != 0 {
			t.Errorf("after a final result, the driver is called again in %v", again)
		}
		return
	}
	within(t, "first wait", retry(result), limits[0])
	for range 12 {
		time.Sleep(retry(result))
		result = ask(question, req)
	}
	within(t, "last wait", retry(result), limits[1])
}

func outcome(result any) string {
	if exists, ok := result.(instance.Exists); ok && exists.Created {
		return "created"
	}
	return strings.ToLower(kind(result))
}
