package cli

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// TestRun_AcceptsMCMProcessNames checks that a program called by the name of an MCM process or of managevm runs as that program,
// and accepts no command.
func TestRun_AcceptsMCMProcessNames(t *testing.T) {
	cases := map[string]struct {
		name     string
		args     []string
		status   int
		wantText []string
	}{
		"sets":           {"./machine-controller-manager", []string{"--help"}, 0, []string{"machine-controller-manager [flags]", "(default 10258)"}},
		"machines":       {"/usr/local/bin/machine-controller", []string{"--help"}, 0, []string{"machine-controller [flags]", "(default 10259)"}},
		"managevm":       {"./managevm", []string{"--help"}, 0, []string{"managevm [flags]", "--secret"}},
		"version":        {"machine-controller", []string{"--version"}, 0, []string{"millwright v1.2.3 (go"}},
		"a mistake":      {"machine-controller-manager", []string{"--port=many"}, 2, []string{`machine-controller-manager: --port: "many" is not a whole number` + "\n", `Run "machine-controller-manager --help" for usage.`}},
		"command":        {"machine-controller", []string{"manager"}, 2, []string{`machine-controller: unexpected argument "manager"`}},
		"in a directory": {"/machine-controller/millwright", []string{"version", "--client"}, 0, []string{"millwright v1.2.3 (go"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var output bytes.Buffer
			if status := Main(Program{Version: "v1.2.3", Name: tc.name, Args: tc.args, Stdout: &output, Stderr: &output}); status != tc.status {
				t.Errorf("exit status %d, want %d", status, tc.status)
			}
			for _, texts := range tc.wantText {
				if !strings.Contains(output.String(), texts) {
					t.Errorf("lacks %q:\n%s", texts, &output)
				}
			}
		})
	}
}

// TestRun_OutputAndExitStatus checks the output and exit status of commands that exit on their own.
func TestRun_OutputAndExitStatus(t *testing.T) {
	cases := map[string]struct {
		args   []string
		status int
		stdout []string
		stderr []string
	}{
		"version":                {[]string{"version", "--client"}, 0, []string{"millwright v1.2.3 (go"}, nil},
		"version as JSON":        {[]string{"version", "--client", "-o", "json"}, 0, []string{`"gitVersion": "v1.2.3"`}, nil},
		"version, no cluster":    {[]string{"version", "--dir", t.TempDir()}, 1, []string{"millwright v1.2.3 (go"}, []string{"no cluster found"}},
		"unknown format":         {[]string{"vm", "list", "-o", "xml"}, 2, nil, []string{`millwright: --output: unknown format "xml"; expected json, yaml, name or wide` + "\n"}},
		"unknown dry run":        {[]string{"machine", "preserve", "m", "--dry-run=perhaps"}, 2, nil, []string{`millwright: --dry-run: unknown mode "perhaps"; expected none, client, server` + "\n"}},
		"help":                   {[]string{"help"}, 0, []string{"manager", "up", "version"}, nil},
		"--help":                 {[]string{"--help"}, 0, []string{"manager", "up", "version"}, nil},
		"nothing":                {nil, 0, []string{"manager", "up", "version"}, nil},
		"help on a command":      {[]string{"help", "manager"}, 0, []string{"--control-kubeconfig", "--driver", "Example"}, nil},
		"--help of a command":    {[]string{"up", "--help"}, 0, []string{"--dir", "control plane"}, nil},
		"unknown command":        {[]string{"fly"}, 2, nil, []string{`unknown command "fly"`, `Run "millwright --help" for usage.`}},
		"mistyped command":       {[]string{"managr"}, 2, nil, []string{"did you mean manager?"}},
		"unknown flag":           {[]string{"--colour"}, 2, nil, []string{"--colour", `Run "millwright --help" for usage.`}},
		"unknown flag of one":    {[]string{"manager", "--colour"}, 2, nil, []string{"--colour", `Run "millwright manager --help" for usage.`}},
		"flag without sense":     {[]string{"manager", "--port", "many"}, 2, nil, []string{`millwright: --port: "many" is not a whole number` + "\n"}},
		"argument too many":      {[]string{"manager", "now"}, 2, nil, []string{`"now"`, `Run "millwright manager --help" for usage.`}},
		"version with argument":  {[]string{"version", "now"}, 2, nil, []string{`"now"`}},
		"several mistakes":       {[]string{"manager", "--driver=sim", "--port=-1", "--concurrent-syncs=0"}, 2, nil, []string{"--port: -1 is not a port number between 0 and 65535; --concurrent-syncs: must be greater than 0\n"}},
		"bad verbosity":          {[]string{"manager", "--v=-1"}, 2, nil, []string{"--v: must"}},
		"bad threshold":          {[]string{"machine-controller", "--stderrthreshold=loud"}, 2, nil, []string{`--stderrthreshold: "loud"`, "WARNING", `Run "millwright machine-controller --help" for usage.`}},
		"bad lock":               {[]string{"machine-controller-manager", "--leader-elect-resource-lock=endpoints"}, 2, nil, []string{`--leader-elect-resource-lock: "endpoints" is not supported; use leases`}},
		"bad content type":       {[]string{"machine-controller", "--kube-api-content-type=/"}, 2, nil, []string{`--kube-api-content-type: "/"`}},
		"MCM's lease":            {[]string{"manager", "--driver=sim", "--apis=capi", "--leader-elect-resource-name=machine-controller"}, 2, nil, []string{`--leader-elect-resource-name: "machine-controller" is the lease`}},
		"other half's flag":      {[]string{"machine-controller-manager", "--driver=sim"}, 2, nil, []string{"unknown flag: --driver"}},
		"check below timeout":    {[]string{"machine-controller", "--machine-safety-apiserver-statuscheck-period=10s"}, 2, nil, []string{"--machine-safety-apiserver-statuscheck-period: 10s is less than"}},
		"bad format":             {[]string{"manager", "--logging-format=xml"}, 2, nil, []string{`--logging-format: unknown format "xml"`}},
		"kubeconfig missing":     {[]string{"manager", "--driver=sim", "--target-kubeconfig=/nowhere/at/all"}, 1, nil, []string{"--target-kubeconfig: ", "/nowhere/at/all"}},
		"up, no sense":           {[]string{"up", "--concurrent-syncs=0"}, 2, nil, []string{"--concurrent-syncs", `Run "millwright up --help" for usage.`}},
		"up, bad ports":          {[]string{"up", "--api-port=70000", "--hosts=-1"}, 2, nil, []string{"--api-port: 70000", "--hosts: -1"}},
		"up, bad network":        {[]string{"up", "--vm-network=10.0.0.1/8"}, 2, nil, []string{"--vm-network: 10.0.0.1/8"}},
		"up, Services":           {[]string{"up", "--vm-network=10.96.4.0/24"}, 2, nil, []string{"--vm-network: 10.96.4.0/24 overlaps the network of Services, 10.96.0.0/16"}},
		"up, IPv6":               {[]string{"up", "--vm-network=fd77::/64"}, 2, nil, []string{"--vm-network: fd77::/64 is not an IPv4 network"}},
		"up, small network":      {[]string{"up", "--vm-network=10.77.0.0/28"}, 2, nil, []string{"--vm-network: 10.77.0.0/28 is not an IPv4 network of 8 to 27 bits"}},
		"VMs, small networks":    {[]string{"vm-controller", "--vm-network=10.77.0.0/28,fd77::/48"}, 2, nil, []string{"--vm-network: 10.77.0.0/28 is not an IPv4 network of 8 to 27 bits", "--vm-network: fd77::/48 is not an IPv6 network of 64 bits"}},
		"VMs in an address":      {[]string{"vm-controller", "--vm-network=10.77.0.1/16"}, 2, nil, []string{"--vm-network: 10.77.0.1/16 is an address in the network 10.77.0.0/16"}},
		"VMs in nonsense":        {[]string{"vm-controller", "--vm-network=network"}, 2, nil, []string{`--vm-network: "network" is not a network`}},
		"up, loopback":           {[]string{"up", "--vm-network=127.0.0.0/16", "--guest=full", "--pod-network=224.0.0.0/16"}, 2, nil, []string{"--vm-network: 127.0.0.0/16 overlaps 127.0.0.0/8", "--pod-network: 224.0.0.0/16 overlaps 224.0.0.0/4"}},
		"VMs on links":           {[]string{"vm-controller", "--vm-network=fe80::/64,169.254.0.0/16"}, 2, nil, []string{"--vm-network: fe80::/64 overlaps fe80::/10", "--vm-network: 169.254.0.0/16 overlaps 169.254.0.0/16"}},
		"up, bad accelerator":    {[]string{"up", "--accelerator=steam", "--binaries=/nowhere/at/all", "--dir", filepath.Join(t.TempDir(), "up")}, 2, nil, []string{`--accelerator: unknown accelerator "steam"; expected auto, kvm or tcg`}},
		"up, VMs without hosts":  {[]string{"up", "--hosts=0", "--binaries=/nowhere/at/all", "--dir", filepath.Join(t.TempDir(), "up")}, 2, nil, []string{"--hosts: the driver vm requires at least 1"}},
		"help on nothing":        {[]string{"help", "bogus"}, 2, nil, []string{`unknown command "bogus"`, `Run "millwright --help" for usage.`}},
		"help on no vm command":  {[]string{"help", "vm", "lisst"}, 2, nil, []string{"did you mean list?", `Run "millwright vm --help" for usage.`}},
		"nothing's --help":       {[]string{"bogus", "--help"}, 2, nil, []string{`unknown command "bogus"`, `Run "millwright --help" for usage.`}},
		"no vm command's -h":     {[]string{"vm", "lisst", "-h"}, 2, nil, []string{"did you mean list?"}},
		"help on help":           {[]string{"help", "help"}, 0, []string{"Help about a command"}, nil},
		"a number too large":     {[]string{"up", "--hosts=99999999999999999999"}, 2, nil, []string{"millwright: --hosts: 99999999999999999999 is out of range\n"}},
		"provider, no TLS":       {[]string{"autoscaler-provider", "--kube-api-burst=0"}, 2, nil, []string{"--kube-api-burst: must be greater than 0; --listen: requires --tls-cert-file", `Run "millwright autoscaler-provider --help" for usage.`}},
		"provider, not loopback": {[]string{"autoscaler-provider", "--insecure-loopback"}, 2, nil, []string{"--listen: only loopback addresses"}},
		"provider, both":         {[]string{"autoscaler-provider", "--insecure-loopback", "--client-ca-file=x", "--health-address=x"}, 2, nil, []string{"--health-address: ", "--insecure-loopback: cannot be used with"}},
		"provider, no file":      {[]string{"autoscaler-provider", "--tls-cert-file=/no", "--tls-private-key-file=/no", "--client-ca-file=/no"}, 2, nil, []string{"certificate /no"}},
		"provider, no cluster":   {[]string{"autoscaler-provider", "--listen=127.0.0.1:0", "--insecure-loopback", "--target-kubeconfig=/nowhere/at/all"}, 1, nil, []string{"--target-kubeconfig: ", "/nowhere/at/all"}},
		"cloud, nothing":         {[]string{"cloud-controller"}, 2, nil, []string{"--infrastructure-kubeconfig: required; --cluster-name: required", `Run "millwright cloud-controller --help" for usage.`}},
		"cloud, nonsense":        {[]string{"cloud-controller", "--infrastructure-kubeconfig=x", "--infrastructure-namespace=A_b", "--cluster-name=a.b", "--leader-elect-namespace=", "--address=here", "--port=-1", "--kube-api-qps=0", "--kube-api-burst=0"}, 2, nil, []string{`--infrastructure-namespace: "A_b" is not a valid namespace; --cluster-name: "a.b" is not a valid name; use at most 47 lower-case letters, digits and hyphens; --leader-elect-namespace: "" is not a valid namespace; --address: "here" is not an IP address; --port: `, "--kube-api-qps: must be greater than 0; --kube-api-burst: must be greater than 0"}},
		"cloud, no cluster":      {[]string{"cloud-controller", "--cluster-name=demo", "--infrastructure-kubeconfig=/none", "--kubeconfig=/nowhere/at/all"}, 1, nil, []string{"--kubeconfig: ", "/nowhere/at/all"}},
		"balancer, nothing":      {[]string{"load-balancer"}, 2, nil, []string{"--address: required", `Run "millwright load-balancer --help" for usage.`}},
		"balancer, nonsense":     {[]string{"load-balancer", "--address=here", "--host=a_b", "--name=A", "--ports=9-8", "--max-connections=0", "--max-connections-per-client=-1", "--max-total-connections=0", "--health-address=x", "--max-ports-per-namespace=-1", "--leader-elect-namespace=A_b", "--leader-elect-resource-name=A_b"}, 2, nil, []string{`--address: "here" is not an IP address; --host: "a_b" is neither a DNS name nor an IP address; --name: "A" is not a valid name; --max-connections: must be greater than 0; --max-connections-per-client: must be greater than 0; --max-total-connections: must be greater than 0; --ports: must be FIRST-LAST, with ports between 1 and 65535; --max-ports-per-namespace: must not be negative; --health-address: `, `--leader-elect-namespace: "A_b" is not a valid namespace; --leader-elect-resource-name: "A_b" is not a valid name`}},
		"balancer, port 0":       {[]string{"load-balancer", "--address=::1", "--ports=0-5"}, 2, nil, []string{"millwright: --ports: must be FIRST-LAST"}},
		"balancer, no cluster":   {[]string{"load-balancer", "--address=127.0.0.1", "--kubeconfig=/nowhere/at/all"}, 1, nil, []string{"--kubeconfig: ", "/nowhere/at/all"}},
		"no duration":            {[]string{"demo", "--timeout=soon"}, 2, nil, []string{`millwright: --timeout: "soon" is not a duration, such as 90s or 5m` + "\n"}},
		"up, bad driver":         {[]string{"up", "--driver=clay"}, 2, nil, []string{`unknown driver "clay"`}},
		"vm":                     {[]string{"vm"}, 0, []string{"list", "console", "reset"}, nil},
		"vm, mistyped":           {[]string{"vm", "lisst"}, 2, nil, []string{"did you mean list?", `Run "millwright vm --help" for usage.`}},
		"vm console, no name":    {[]string{"vm", "console"}, 2, nil, []string{"the name of a virtual machine", `Run "millwright vm console --help" for usage.`}},
		"vm list, no cluster":    {[]string{"vm", "list", "--dir", t.TempDir()}, 1, nil, []string{"millwright up"}},
		"status, nothing":        {[]string{"status", "--dir", t.TempDir()}, 0, []string{"No cluster runs"}, nil},
		"status, no directory":   {[]string{"status", "--dir", "/nowhere/at/all"}, 0, []string{"No cluster runs"}, nil},
		"down, nothing":          {[]string{"down", "--dir", t.TempDir()}, 0, []string{"Nothing runs"}, nil},
		"hostrunner, nothing":    {[]string{"hostrunner"}, 2, nil, []string{"--name"}},
		"up, no programs":        {[]string{"up", "--binaries=/nowhere/at/all", "--dir", filepath.Join(t.TempDir(), "up")}, 1, nil, []string{"/nowhere/at/all"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			status := Main(Program{Version: "v1.2.3", Args: tc.args, Stdout: &stdout, Stderr: &stderr})
			if status != tc.status {
				t.Errorf("exit status %d, want %d", status, tc.status)
			}
			for _, texts := range tc.stdout {
				if !strings.Contains(stdout.String(), texts) {
					t.Errorf("stdout lacks %q:\n%s", texts, &stdout)
				}
			}
			for _, texts := range tc.stderr {
				if !strings.Contains(stderr.String(), texts) {
					t.Errorf("stderr lacks %q:\n%s", texts, &stderr)
				}
			}
			if tc.status == 0 && stderr.Len() != 0 {
				t.Errorf("stderr of a success:\n%s", &stderr)
			}
			if tc.status != 0 && !strings.HasPrefix(stderr.String(), "millwright: ") {
				t.Errorf("stderr does not begin with the program's name:\n%s", &stderr)
			}
		})
	}
}
