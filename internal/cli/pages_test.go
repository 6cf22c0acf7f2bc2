package cli

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/cli/plugin"
	"github.com/millwright-dev/millwright/internal/local/archives"
	"github.com/millwright-dev/millwright/test/support/env"
)

var (
	// inline matches a flag in the text of a page, such as `--driver=sim`.
	inline = regexp.MustCompile("`--([a-z][a-z0-9_-]*)[^`]*`")
	// called matches a line of a page with a Millwright command.
	called  = regexp.MustCompile(`(?m)^ *(?:\$ )?(?:\./|bin/)?(?:millwright|machine-controller|machine-controller-manager) ([^|\n]+)`)
	oneFlag = regexp.MustCompile(`(?:^| )--([a-z][a-z0-9-]*)`)
)

// ofOthers are flags of other programs that pages mention without the command.
var ofOthers = map[string]string{
	"cascade":                            "kubectl delete",
	"cloud-config":                       "the autoscaler",
	"expendable-pods-priority-cutoff":    "the autoscaler",
	"max-node-provision-time":            "the autoscaler",
	"nodes":                              "the autoscaler",
	"flavor":                             "clusterctl generate cluster",
	"runtime-extension-client-cert-file": "Cluster API's core",
	"runtime-extension-client-key-file":  "Cluster API's core",
	"manager-command":                    "the benchmark",
	"profiles":                           "the benchmark",
	"provider-spec":                      "the benchmark",
	"clusters":                           "the benchmark",
	"health-timeout":                     "the benchmark",
	"phases":                             "the benchmark",
	"pods":                               "the benchmark",
	"pods-per-machine":                   "the benchmark",
	"replacements":                       "the benchmark",
	"volumes-per-machine":                "the benchmark",
	"log-file":                           "klog",
	"bootstrap-kubeconfig":               "the kubelet",
	"hostname-override":                  "the kubelet",
	"node-ip":                            "the kubelet",
	"node-labels":                        "the kubelet",
	"pass-authorization-header":          "oauth2-proxy",
	"cookie-refresh":                     "oauth2-proxy",
	"scope":                              "oauth2-proxy",
	"oidc-groups-claim":                  "oauth2-proxy",
	"session-store-type":                 "oauth2-proxy",
	"ssl-upstream-insecure-skip-verify":  "oauth2-proxy",
	"trusted-proxy-ip":                   "oauth2-proxy",
	"provider-id":                        "the kubelet",
	"service-node-port-range":            "kube-apiserver",
	"api":                                "the benchmark",
	"burst":                              "the benchmark",
	"qps":                                "the benchmark",
	"replicas":                           "the benchmark",
	"bump-revision":                      "etcdutl",
}

// TestDocs_FlagsExist checks that every flag on a page is a flag of some command.
func TestDocs_FlagsExist(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"help": true, "version": true}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(flag *pflag.Flag) { known[flag.Name] = true })
		for _, child := range cmd.Commands() {
			visit(child)
		}
	}
	visit(newRoot("test", archives.Set{}))
	plugged, err := plugin.New(registry.Kind{Name: "example", Open: func(context.Context, registry.Environment) (driver.Driver, error) { return nil, nil }}, "test")
	if err != nil {
		t.Fatal(err)
	}
	visit(plugged)
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*", "*.md"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	named := 0
	pages = slices.DeleteFunc(pages, func(page string) bool { return filepath.Base(filepath.Dir(page)) == "design" })
	for _, page := range append(pages, filepath.Join(root, "README.md"), filepath.Join(root, "config", "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range flagsIn(string(text)) {
			named++
			if !known[flag] && ofOthers[flag] == "" {
				t.Errorf("%s names --%s", filepath.Base(page), flag)
			}
		}
	}
	if named < 150 {
		t.Errorf("%d flags are named: the form of the pages has changed", named)
	}
}

// flagsIn returns the Millwright flags on a page.
func flagsIn(text string) (flags []string) {
	for _, match := range inline.FindAllStringSubmatch(text, -1) {
		flags = append(flags, strings.ReplaceAll(match[1], "_", "-"))
	}
	for _, match := range called.FindAllStringSubmatch(strings.ReplaceAll(text, "\\\n", " "), -1) {
		for _, flag := range oneFlag.FindAllStringSubmatch(match[1], -1) {
			flags = append(flags, flag[1])
		}
	}
	return flags
}
