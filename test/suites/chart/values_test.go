package chart

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestChart_Lint runs "helm lint --strict", which may not even recommend anything.
func TestChart_Lint(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"one-pod", "two-deployments", "whole", "machine-controller-manager", "machine-controller", "target", "target-two-deployments", "vm-controller", "load-balancer", "fleet"} {
		for _, message := range lint.All(place(t, "charts/millwright"), with(mode, values{
			"vmController": values{"hypervisorImage": values{"repository": "registry.example.com/hypervisor"}, "namespaces": []any{"vms"}}, "loadBalancer": values{"host": "lb.example.com"},
		}), namespace, true).Messages {
			if message.Severity >= support.InfoSev {
				t.Errorf("%s: %s", mode, message)
			}
		}
	}
}

// TestChart_RejectsInvalidValues checks that invalid values are rejected with a message that names the value.
func TestChart_RejectsInvalidValues(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		of       values
		wantText string
	}{
		"no image":         {values{"image": values{"repository": ""}}, "image.repository is required"},
		"mode":             {values{"mode": "both"}, "mode"},
		"misspelt":         {values{"replica": 1}, "replica"},
		"misspelt below":   {values{"networkPolicy": values{"enable": true}}, "enable"},
		"replicas":         {values{"replicas": -1}, "replicas"},
		"text":             {values{"replicas": "two"}, "replicas"},
		"driver":           {values{"driver": "aws"}, "driver"},
		"namespace":        {values{"machineNamespace": "Not A Namespace"}, "machineNamespace"},
		"tag in the image": {values{"image": values{"repository": "registry.example.com/millwright:v1"}}, "repository"},
		"own image":        {values{"machineController": values{"image": values{"repository": "registry.example.com/own"}}}, "machineController.image.tag is required"},
		"own MCM":          {values{"machineControllerManager": values{"image": values{"repository": "registry.example.com/mcm"}}}, "machineControllerManager.image.tag is required"},
		"port":             {values{"machineController": values{"port": 80}}, "port"},
		"admission":        {values{"policies": values{"machine": true}}, "policies"},
		"two targets":      {values{"target": values{"none": true, "kubeconfigSecret": "other"}}, "kubeconfigSecret"},
		"driver's tag":     {values{"driverSidecar": values{"image": values{"repository": "registry.example.com/own"}}}, "driverSidecar.image.tag is required"},
		"driver's port":    {values{"driverNetwork": values{"port": 80}}, "port"},
		"webhook's port":   {values{"warnings": values{"port": 443}}, "port"},
		"authority":        {values{"warnings": values{"caBundle": "-----BEGIN CERTIFICATE-----"}}, "caBundle"},
		"flag":             {values{"extraArgs": []any{"v=2"}}, "extraArgs"},
		"flags as text":    {values{"extraArgs": "--v=2"}, "extraArgs"},
		"budget":           {values{"podDisruptionBudget": values{"maxUnavailable": "half"}}, "maxUnavailable"},
		"no hypervisors":   {values{"mode": "vm-controller"}, "vmController.hypervisorImage.repository is required"},
		"VM namespace":     {values{"vmController": values{"namespaces": []any{"Not A Namespace"}}}, "vmController"},
		"own namespace":    {values{"mode": "vm-controller", "vmController": values{"hypervisorImage": values{"repository": "a", "tag": "b"}, "namespaces": []any{namespace}}}, "must not contain the namespace of the release"},
		"no namespaces":    {values{"mode": "vm-controller", "vmController": values{"hypervisorImage": values{"repository": "a", "tag": "b"}}}, "vmController.namespaces is required"},
		"both namespaces":  {values{"mode": "vm-controller", "vmController": values{"hypervisorImage": values{"repository": "a", "tag": "b"}, "namespaces": []any{"c"}, "allNamespaces": true}}, "vmController.namespaces must be empty"},
		"no host":          {values{"mode": "load-balancer"}, "loadBalancer.host is required"},
		"host":             {values{"loadBalancer": values{"host": "a_b"}}, "host"},
		"too many ports":   {values{"mode": "load-balancer", "loadBalancer": values{"host": "a", "firstPort": 65500, "ports": 100}}, "must not exceed 65535"},
		"type of Service":  {values{"loadBalancer": values{"service": values{"type": "ExternalName"}}}, "type"},
		"interval":         {values{"serviceMonitor": values{"interval": "often"}}, "interval"},
		"no addresses":     {values{"ui": values{"enabled": true}}, "ui.urls is required"},
		"address":          {values{"ui": values{"urls": []any{"machines.example.com"}}}, "urls"},
		"proxy":            {values{"ui": values{"trustedProxies": []any{"10.0.0.1"}}}, "trustedProxies"},
		"policy":           {values{"image": values{"pullPolicy": "Sometimes"}}, "pullPolicy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := template(t, namespace, with("one-pod", tc.of))
			if err == nil || !strings.Contains(err.Error(), tc.wantText) {
				t.Errorf("it is refused with %v, which does not contain %q", err, tc.wantText)
			}
		})
	}
}

// TestChart_EveryValueIsInSchema checks that the defaults and the schema have the same values, and that each has a
// description, which editors and Artifact Hub show, and a row in the README.
func TestChart_EveryValueIsInSchema(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	var schema map[string]any
	if err := json.Unmarshal(loaded.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(place(t, "charts/millwright/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	readme, definitions := string(text), schema["definitions"].(map[string]any)
	var compare func(path string, values, schema map[string]any)
	compare = func(path string, values, schema map[string]any) {
		properties := schema["properties"].(map[string]any)
		for name := range properties {
			if _, there := values[name]; !there && path+name != "global" {
				t.Errorf("%s has no default", path+name)
			}
		}
		for name, value := range values {
			property, there := properties[name].(map[string]any)
			if !there || property["description"] == nil {
				t.Errorf("%s is not in the schema, or has no description", path+name)
				continue
			}
			if reference, ok := property["$ref"].(string); ok {
				property = definitions[strings.TrimPrefix(reference, "#/definitions/")].(map[string]any)
			}
			below, isObject := value.(map[string]any)
			if _, fixed := property["properties"]; fixed && isObject && name != "resources" {
				compare(path+name+".", below, property)
			} else if !strings.Contains(readme, "\n| `"+path+name+"` |") {
				t.Errorf("%s is not in the README", path+name)
			}
		}
	}
	compare("", loaded.Values, schema)
}

// TestChart_ListsItsCRDs checks the list of CRDs for Artifact Hub.
func TestChart_ListsItsCRDs(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	var listed []struct{ Kind, Version, Name, DisplayName, Description string }
	if err := yaml.UnmarshalStrict([]byte(loaded.Metadata.Annotations["artifacthub.io/crds"]), &listed); err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, crd := range loaded.CRDObjects() {
		var object struct {
			Metadata struct{ Name string }
			Spec     struct{ Names struct{ Kind string } }
		}
		if err := yaml.Unmarshal(crd.File.Data, &object); err != nil {
			t.Fatal(err)
		}
		want = append(want, object.Spec.Names.Kind+" "+object.Metadata.Name)
	}
	for _, crd := range listed {
		got = append(got, crd.Kind+" "+crd.Name)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("listed are %q, want %q", got, want)
	}
	if icon := place(t, "docs/"+filepath.Base(loaded.Metadata.Icon)); !exists(icon) {
		t.Errorf("the icon %s does not exist", icon)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestChart_EveryValueHasAnEffect checks that each of these values appears in the rendered manifests.
func TestChart_EveryValueHasAnEffect(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		of   values
		want []string
	}{
		"own image": {values{"driver": "", "machineController": values{
			"image": values{"repository": "registry.example.com/aws", "tag": "v1"}, "command": []any{"./machine-controller"},
			"livenessPath": "/healthz", "readinessPath": "/healthz",
		}}, []string{`image: "registry.example.com/aws:v1"`, `command: ["./machine-controller"]`, "path: /healthz", `image: "registry.example.com/millwright:v0.1.0"`}},
		"MCM and Millwright": {values{"machineControllerManager": values{
			"image": values{"repository": "registry.example.com/mcm", "tag": "v0.62.0"}, "command": []any{"./machine-controller-manager"},
			"livenessPath": "/healthz", "readinessPath": "/healthz", "port": 20258, "extraArgs": []any{"--safety-up=2"},
		}}, []string{`image: "registry.example.com/mcm:v0.62.0"`, `command: ["./machine-controller-manager"]`, "path: /healthz", "--port=20258", "port: 20258", `image: "registry.example.com/millwright:v0.1.0"`, "--safety-up=2"}},
		"namespace":  {values{"machineNamespace": "shoot--a--b"}, []string{"--namespace=shoot--a--b", "namespace: shoot--a--b"}},
		"kubeconfig": {values{"control": values{"kubeconfigSecret": "c"}}, []string{"--control-kubeconfig=/etc/millwright/control/kubeconfig", "secretName: c"}},
		"no target":  {values{"target": values{"none": true}}, []string{"--target-kubeconfig=none"}},
		"scheduling": {values{
			"nodeSelector": values{"a": "b"}, "tolerations": []any{values{"key": "c"}}, "priorityClassName": "d", "affinity": values{"podAntiAffinity": values{}},
			"podLabels": values{"e": "f"}, "podAnnotations": values{"g": "h"}, "imagePullSecrets": []any{values{"name": "i"}},
		}, []string{"a: b", "key: c", "priorityClassName: d", "podAntiAffinity: {}", "e: f", "g: h", "- name: i"}},
		"more": {values{
			"installation": "prod", "extraArgs": []any{"--v=2"}, "extraEnv": []any{values{"name": "A", "value": "B"}},
			"extraVolumes": []any{values{"name": "V"}}, "extraVolumeMounts": []any{values{"name": "V", "mountPath": "/v"}},
			"machineController":        values{"extraArgs": []any{"--concurrent-syncs=7"}, "resources": values{"limits": values{"memory": "1Gi"}}},
			"machineControllerManager": values{"extraArgs": []any{"--safety-up=3"}, "resources": values{}},
		}, []string{"--installation=prod", "--v=2", "value: B", "mountPath: /v", "--concurrent-syncs=7", "memory: 1Gi", "--safety-up=3"}},
		"monitoring": {values{"serviceMonitor": values{"enabled": true, "interval": "30s", "labels": values{"release": "p"}}}, []string{"interval: 30s", "release: p"}},
		"flow":       {values{"flowSchema": values{"enabled": true, "concurrencyShares": 5}}, []string{"nominalConcurrencyShares: 5"}},
		"sidecar": {values{"extraVolumes": []any{values{"name": "V"}}, "driverSidecar": values{
			"image": values{"repository": "registry.example.com/own", "tag": "v2"}, "command": []any{"/own"}, "args": []any{"--where"}, "env": []any{values{"name": "A", "value": "B"}},
			"resources": values{"limits": values{"memory": "2Gi"}}, "livenessProbe": values{"httpGet": values{"path": "/alive"}},
			"volumeMounts": []any{values{"name": "V", "mountPath": "/v"}},
		}}, []string{`image: "registry.example.com/own:v2"`, `command: ["/own"]`, `args: ["--where"]`, "value: B", "memory: 2Gi", "path: /alive", "mountPath: /v", "--driver-socket=/run/millwright/drivers.sock"}},
		"drivers' port": {values{"driverNetwork": values{"tlsSecret": "s", "port": 20260}}, []string{"--driver-listen=:20260", "containerPort: 20260", "secretName: s", "- port: 20260", "targetPort: drivers"}},
		"warnings": {values{"machineNamespace": "shoot--a--b", "warnings": values{"tlsSecret": "s", "caBundle": "Y2E=", "port": 20443}}, []string{
			"--webhook-port=20443", "containerPort: 20443", "secretName: s", "- port: 20443", "targetPort: webhook", "caBundle: Y2E=",
			"name: millwright-warnings-" + namespace, "kubernetes.io/metadata.name: shoot--a--b",
		}},
		"page": {values{"ui": values{
			"enabled": true, "urls": []any{"https://machines.example.com/page/", "http://localhost:8001/proxy/"}, "tlsSecret": "s", "trustedProxies": []any{"10.0.0.0/8"}, "maxSessions": 7, "maxSessionsPerUser": 4, "maxSessionsPerAddress": 3,
			"port": 20443, "service": values{"annotations": values{"a": "b"}}, "extraArgs": []any{"--session-idle-timeout=5m"}, "resources": values{"limits": values{"memory": "3Gi"}},
			"ingress": values{"enabled": true, "className": "c", "annotations": values{"d": "e"}, "tlsSecret": "t"},
		}}, []string{
			"--in-cluster", "--url=https://machines.example.com/page/", "--url=http://localhost:8001/proxy/", "--trusted-proxies=10.0.0.0/8", "--max-sessions=7", "--max-sessions-per-user=4", "--max-sessions-per-address=3", "--port=20443", "containerPort: 20443",
			"- port: 20443", "secretName: s", "--tls-cert-file=/etc/millwright/ui/tls.crt", "a: b", "--session-idle-timeout=5m", "memory: 3Gi", "ingressClassName: c", "d: e", "secretName: t",
			"host: machines.example.com", "path: /page/",
		}},
		"budget": {values{"podDisruptionBudget": values{"maxUnavailable": "50%"}}, []string{"maxUnavailable: 50%"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			manifests, notes, err := template(t, namespace, with("one-pod", tc.of))
			if err != nil {
				t.Fatal(err)
			}
			fixture.Objects(t, []byte(manifests))
			for _, want := range tc.want {
				if !strings.Contains(manifests, want) {
					t.Errorf("%q is not in\n%s", want, manifests)
				}
			}
			if !strings.Contains(notes, "Machines are in namespace") {
				t.Errorf("the notes are\n%s", notes)
			}
		})
	}
}
