package language

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// allowed matches phrases that contain a term of the table in another meaning.
var allowed = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	`there\s+is\s+no`, `is\s+no\s+(longer|more|less)`, // idiomatic
	`all\s+at\s+once`,                 // at the same time
	`ends\s+(with|in)`, `both\s+ends`, // of texts and cables
	`(users|identities)\s+who\s+may`,
	`(parent )?death ?signal`, // the kernel's term
}, "|") + `)\b`)

// unread are files that hold no text of this project: what others wrote, what tools write from other files, and
// recordings.
var unread = []string{
	"LICENSE",
	"CONTRIBUTING.md", // has the table
	"test/suites/language",
	"proto/metropolis", // Metropolis' protocol
	"config/crd",       // generated from api
	"charts/millwright/crds",
	"charts/millwright/files", // copies from config
	"compat/mcm/kubernetes",
}

// notYetClean are files that still contain such terms. Whoever rewrites one of them removes it.
var notYetClean = []string{
	"docs/contributing/reliability.md",
	"driver/sim/fault.go",
	"driver/sim/internal/spec/script.go",
	"examples/machinedeployment/in-place-auto.yaml",
	"examples/machinedeployment/in-place-manual.yaml",
	"examples/mcm-provider/kubernetes/pool.yaml",
	"examples/mcm-provider/pkg/folder/driver.go",
	"examples/mcm-provider/pkg/folder/spec.go",
	"examples/mcm-provider/test/conformance/conformance_test.go",
	"examples/mcm-provider/test/integration/provider/tracker.go",
	"guest/system/bootstrap_test.go",
	"internal/cli/cluster/load/load_test.go",
	"internal/cli/cluster/local_test.go",
	"internal/cli/cluster/logfile_test.go",
	"internal/cli/conformance/conformance_test.go",
	"internal/cli/explain_clusters_test.go",
	"internal/cli/explain_pools_test.go",
	"internal/cli/explain_retry_test.go",
	"internal/cli/explain_test.go",
	"internal/cli/instance/calls_test.go",
	"internal/cli/kubeconfig/kubeconfig_test.go",
	"internal/cli/loadbalancer/via_test.go",
	"internal/cli/localdir/localdir_test.go",
	"internal/cli/logging/logging_test.go",
	"internal/cli/printable_test.go",
	"internal/cli/rollout/diff.go",
	"internal/cli/rollout/firstchoice_test.go",
	"internal/cli/rollout_server_test.go",
	"internal/cli/run_test.go",
	"internal/cli/status_test.go",
	"internal/cli/terminal/guest_test.go",
	"internal/cli/terminal/screen_test.go",
	"internal/cli/vm/fence_test.go",
	"internal/cli/vm/images_test.go",
	"internal/cli/vm/rollout_test.go",
	"internal/cli/vmcontroller/identity_test.go",
	"internal/confine/confine_test.go",
	"internal/connlimit/requests_test.go",
	"internal/controllers/capi/cluster/controller.go",
	"internal/controllers/capi/controller.go",
	"internal/controllers/machine/capacity_test.go",
	"internal/controllers/machine/failure_test.go",
	"internal/controllers/machine/migration_test.go",
	"internal/lifecycle/drain/plan_test.go",
	"internal/lifecycle/instance/memory_test.go",
	"internal/lifecycle/scarcity/capacity/capacity_test.go",
	"internal/loadbalancer/balancer_test.go",
	"internal/loadbalancer/forward_test.go",
	"internal/loadbalancer/readyz_test.go",
	"internal/local/controlplane/full_test.go",
	"internal/local/controlplane/serve_test.go",
	"internal/local/controlplane/start_test.go",
	"internal/local/directory/directory_test.go",
	"internal/local/directory/full_test.go",
	"internal/local/hostrunner/devices_test.go",
	"internal/local/hostrunner/faults_test.go",
	"internal/local/hostrunner/full_test.go",
	"internal/local/hostrunner/harness_test.go",
	"internal/local/hostrunner/killed_test.go",
	"internal/local/hostrunner/program_test.go",
	"internal/local/hostrunner/provisioner/full_test.go",
	"internal/local/hostrunner/provisioner/provisioner_test.go",
	"internal/local/hostrunner/runner_test.go",
	"internal/local/hostrunner/status_test.go",
	"internal/local/hostrunner/volumes_test.go",
	"internal/local/process/process_test.go",
	"internal/local/supervisor/supervisor_test.go",
	"internal/observe/explain/report/report.go",
	"test/suites/apiserver/recorded_test.go",
	"test/suites/apiserver/rollout_cluster_test.go",
	"test/suites/apiserver/rollout_test.go",
	"test/suites/apiserver/subresources_test.go",
	"test/suites/apiserver/subresources_world_test.go",
	"test/suites/byname/byname_test.go",
	"test/suites/capi/domains_test.go",
	"test/suites/capi/harness_test.go",
	"test/suites/capi/kubeadmharness_test.go",
	"test/suites/capi/shared_test.go",
	"test/suites/chart/driver_test.go",
	"test/suites/chart/values_test.go",
	"test/suites/comments/comments_test.go",
	"test/suites/crash/apiserver_test.go",
	"test/suites/crash/broken_test.go",
	"test/suites/crash/check_test.go",
	"test/suites/crash/classupdate_test.go",
	"test/suites/crash/compaction_test.go",
	"test/suites/crash/etcdfull_test.go",
	"test/suites/crash/explore_test.go",
	"test/suites/crash/fault_test.go",
	"test/suites/crash/force_test.go",
	"test/suites/crash/gate_test.go",
	"test/suites/crash/inplace_users_test.go",
	"test/suites/crash/plugin_test.go",
	"test/suites/crash/point_names_test.go",
	"test/suites/crash/point_test.go",
	"test/suites/crash/progress_test.go",
	"test/suites/crash/provider_test.go",
	"test/suites/crash/remote_test.go",
	"test/suites/crash/rules_cases_test.go",
	"test/suites/crash/scenario_test.go",
	"test/suites/crash/soak_test.go",
	"test/suites/crash/succession_cases_test.go",
	"test/suites/crash/worlds_test.go",
	"test/suites/docs/examples_test.go",
	"test/suites/e2e/quickstart_test.go",
	"test/suites/guest/console_test.go",
	"test/suites/modules/mcm_test.go",
	"test/suites/pod/account_test.go",
	"test/suites/pod/install_test.go",
	"test/suites/pod/pod_test.go",
	"test/suites/pod/sidecar_test.go",
	"test/suites/release/container_test.go",
	"test/suites/release/image_test.go",
	"test/suites/scenario/autoscaler_test.go",
	"test/suites/scenario/badinput_test.go",
	"test/suites/scenario/network_test.go",
	"test/suites/scenario/scale_test.go",
	"test/suites/security/edits_test.go",
	"test/suites/security/guest_test.go",
	"test/suites/security/provider_test.go",
	"test/suites/security/webhook_test.go",
	"test/suites/takeover/gate_test.go",
	"test/suites/takeover/handback_test.go",
	"test/suites/takeover/manager_test.go",
	"test/suites/takeover/preserving_test.go",
	"test/suites/vmcontroller/origin_test.go",
	"test/suites/vmcontroller/parties_test.go",
	"test/suites/vmpod/stuck_test.go",
	"test/suites/vms/badinput_test.go",
	"test/suites/vms/console_test.go",
	"test/suites/vms/follow_test.go",
	"test/suites/vms/life_test.go",
	"test/suites/vms/neighbour_test.go",
	"test/suites/vms/trial_test.go",
	"test/support/env/compact.go",
	"test/support/env/requests.go",
	"test/support/explained/explained.go",
	"test/support/fixture/fixture.go",
	"test/support/lockstep/lockstep.go",
	"test/support/node/inside.go",
	"test/support/program/program.go",
	"test/support/serverfault/serverfault.go",
	"test/support/smallfs/smallfs.go",
	"test/support/upstream/machinecontroller.go",
	"test/support/upstream/process.go",
}

// readExtensions are those of files that hold text.
var readExtensions = []string{".go", ".md", ".yaml", ".yml", ".sh", ".proto", ".tpl", ".txt"}

// isRead reports whether a file holds text that is to be checked.
func isRead(name string) bool {
	if below(unread, name) || below(notYetClean, name) {
		return false
	}
	if slices.Contains(strings.Split(filepath.ToSlash(name), "/"), "testdata") {
		return false
	}
	return slices.Contains(readExtensions, filepath.Ext(name)) || filepath.Base(name) == "Makefile"
}

// below reports whether a file is one of those listed, or in a directory listed.
func below(list []string, name string) bool {
	return slices.ContainsFunc(list, func(prefix string) bool {
		return name == prefix || strings.HasPrefix(name, prefix+"/")
	})
}
