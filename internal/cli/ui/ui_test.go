package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/ui"
)

// TestLink_IsPassedInPrivateFile checks that other users can read the link neither in the arguments of the browser nor in
// the file.
func TestLink_IsPassedInPrivateFile(t *testing.T) {
	dir := t.TempDir()
	record := filepath.Join(dir, "arguments")
	if err := os.WriteFile(filepath.Join(dir, "xdg-open"), []byte("#!/bin/sh\nprintf '%s\\n' \"$@\" >"+record+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("DISPLAY", ":0")
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	const link = "http://millwright-x.localhost:1/?token=SECRET"
	var messages bytes.Buffer
	started, remove := openBrowser(link, &messages)
	if started == nil || messages.Len() > 0 {
		t.Fatalf("no browser was started: %s", &messages)
	}
	if err := started.Wait(); err != nil {
		t.Fatal(err)
	}
	arguments, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	path, isFile := strings.CutPrefix(strings.TrimSpace(string(arguments)), "file://")
	if !isFile || strings.Contains(string(arguments), "SECRET") {
		t.Fatalf("the arguments are %q", arguments)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || info.Mode().Perm() != 0o600 || !strings.Contains(string(text), link) {
		t.Errorf("mode %s, %q, %v", info.Mode(), text, err)
	}
	remove()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file remains: %v", err)
	}
}

// TestHost_IsLoopback checks which host names the link may have.
func TestHost_IsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "x.localhost": true, "127.0.0.1": true, "127.1.2.3": true,
		"": false, "example.com": false, "192.0.2.1": false, "0.0.0.0": false, "localhost.example.com": false, "a/b.localhost": false, "a:1.localhost": false, "::1": false,
	} {
		if got := isLoopback(host); got != want {
			t.Errorf("%q: %t, want %t", host, got, want)
		}
	}
}

// TestPage_ListsAgainAfterOutage checks that the page lists objects after an outage instead of resuming watches, because the
// cluster may have been restored from a backup.
func TestPage_ListsAgainAfterOutage(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "true" {
			panic(http.ErrAbortHandler) // closes the connection
		}
		w.Header().Set("Content-Type", "application/json")
		list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: v1alpha1.SchemeGroupVersion.String()}
		list.APIResources = []metav1.APIResource{{Name: "machines", Kind: "Machine", Namespaced: true}}
		_ = json.NewEncoder(w).Encode(list) // the client sees the failure
	}))
	defer server.Close()
	options, err := (&flags{}).optionsOf(&rest.Config{Host: server.URL}, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = options.Control.Watch(t.Context(), &v1alpha1.MachineList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "7"}})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("a watch from a version returned %v", err)
	}
}

// TestActions_ShowTheirCommands checks that each action has a command that selects the same cluster and object.
func TestActions_ShowTheirCommands(t *testing.T) {
	a := actions{cluster: []string{"--dir", "/clusters/it's", "--context", "c"}}
	got := map[string]string{}
	for _, action := range a.all() {
		got[action.Name] = ui.Quote(action.Command(ui.Request{Namespace: "n", Name: "x", Replicas: ptr.To(int32(5)), Revision: 2, Host: "host-1"}))
		if action.Title == "" || !strings.HasSuffix(action.Effect, ".") || action.Do == nil {
			t.Errorf("%s: incomplete", action.Name)
		}
	}
	const cluster = ` -n n --dir '/clusters/it'\''s' --context c`
	want := map[string]string{
		"scale":    `kubectl scale machinedeployments.machine.sapcloud.io x --replicas 5 -n n --kubeconfig '/clusters/it'\''s/kubeconfig' --context c`,
		"pause":    "millwright rollout pause x" + cluster,
		"resume":   "millwright rollout resume x" + cluster,
		"restart":  "millwright rollout restart x" + cluster,
		"undo":     "millwright rollout undo x" + cluster + " --to-revision 2",
		"preserve": "millwright machine preserve x" + cluster,
		"release":  "millwright machine release x" + cluster,
		"migrate":  "millwright vm migrate x" + cluster + " --to host-1",
		"reset":    "millwright vm reset x" + cluster,

		"capi-scale":  `kubectl scale machinedeployments.cluster.x-k8s.io x --replicas 5 -n n --kubeconfig '/clusters/it'\''s/kubeconfig' --context c`,
		"capi-pause":  `kubectl patch machinedeployments.cluster.x-k8s.io x --type merge --patch '{"spec":{"paused":true}}' -n n --kubeconfig '/clusters/it'\''s/kubeconfig' --context c`,
		"capi-resume": `kubectl patch machinedeployments.cluster.x-k8s.io x --type merge --patch '{"spec":{"paused":false}}' -n n --kubeconfig '/clusters/it'\''s/kubeconfig' --context c`,
	}
	for name, command := range want {
		if got[name] != command {
			t.Errorf("%s: %s\nwant %s", name, got[name], command)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d actions, want %d", len(got), len(want))
	}
}

// TestActions_ChangeObjects checks the actions that need nothing but an API server.
func TestActions_ChangeObjects(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	key := client.ObjectKey{Namespace: "n", Name: "x"}
	labels := map[string]string{"pool": "x"}
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "x"}, Spec: v1alpha1.MachineDeploymentSpec{
		Replicas: 1, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}},
	}}
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "x"}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(deployment, machine).Build()
	do := map[string]func(context.Context, ui.Request) (string, error){}
	for _, action := range (actions{client: c}).all() {
		do[action.Name] = action.Do
	}
	for _, step := range []struct {
		action, done string
		check        func() bool
	}{
		{"pause", "paused", func() bool { return deployment.Spec.Paused }},
		{"resume", "resumed", func() bool { return !deployment.Spec.Paused }},
		{"restart", "restarted", func() bool { return len(deployment.Spec.Template.Annotations) == 1 }},
		{"preserve", "will be preserved now", func() bool { return machine.Annotations[v1alpha1.AnnotationKeyPreserve] == "now" }},
		{"release", "will no longer be preserved", func() bool { return machine.Annotations[v1alpha1.AnnotationKeyPreserve] == "" }},
	} {
		done, err := do[step.action](t.Context(), ui.Request{Namespace: "n", Name: "x"})
		if err != nil || done != step.done {
			t.Errorf("%s: %q, %v", step.action, done, err)
		}
		for _, object := range []client.Object{deployment, machine} {
			if err := c.Get(t.Context(), key, object); err != nil {
				t.Fatal(err)
			}
		}
		if !step.check() {
			t.Errorf("%s changed nothing: %+v, %v", step.action, deployment.Spec, machine.Annotations)
		}
	}
	if _, err := do["undo"](t.Context(), ui.Request{Namespace: "n", Name: "x"}); err == nil {
		t.Error("undo without a revision returns no error")
	}
}
