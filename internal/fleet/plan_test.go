package fleet

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const goodKubeconfig = `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": "https://target"}}],
"users": [{"name": "u", "user": {"token": "t"}}],
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`

func namespaceNamed(name string, annotations map[string]string) corev1.Namespace {
	return corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "1", Annotations: annotations}}
}

func targetSecret(namespace, name, kubeconfig string) corev1.Secret {
	return corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{KubeconfigKey: []byte(kubeconfig)}}
}

// newPlanner returns a planner that rejects the annotation "wrong", and counts its calls.
func newPlanner(calls *int) *planner {
	return &planner{targets: "with the name target", configure: func(_ string, annotations map[string]string) (Settings, error) {
		*calls++
		if _, wrong := annotations["wrong"]; wrong {
			return Settings{}, errors.New("wrong")
		}
		return Settings{QPS: 1}, nil
	}}
}

func TestPlan_Problems(t *testing.T) {
	tests := map[string]struct {
		annotations map[string]string
		secrets     []corev1.Secret
		want        string // the reason of the problem
	}{
		"good":          {secrets: []corev1.Secret{targetSecret("a", "target", goodKubeconfig)}},
		"no Secret":     {want: ReasonSecretMissing, secrets: []corev1.Secret{targetSecret("b", "target", goodKubeconfig)}},
		"two Secrets":   {want: ReasonSecretAmbiguous, secrets: []corev1.Secret{targetSecret("a", "one", goodKubeconfig), targetSecret("a", "two", goodKubeconfig)}},
		"no kubeconfig": {want: ReasonKubeconfigRefused, secrets: []corev1.Secret{targetSecret("a", "target", "")}},
		"a program":     {want: ReasonKubeconfigRefused, secrets: []corev1.Secret{targetSecret("a", "target", strings.Replace(goodKubeconfig, `"token": "t"`, `"exec": {"command": "id", "apiVersion": "client.authentication.k8s.io/v1"}`, 1))}},
		"a file":        {want: ReasonKubeconfigRefused, secrets: []corev1.Secret{targetSecret("a", "target", strings.Replace(goodKubeconfig, `"token": "t"`, `"tokenFile": "/etc/passwd"`, 1))}},
		"1 MB":          {want: ReasonKubeconfigRefused, secrets: []corev1.Secret{targetSecret("a", "target", goodKubeconfig+strings.Repeat(" ", 1<<20))}},
		"wrong setting": {want: ReasonSettingsInvalid, annotations: map[string]string{Prefix + "wrong": "x"}, secrets: []corev1.Secret{targetSecret("a", "target", goodKubeconfig)}},
		"other setting": {annotations: map[string]string{"wrong": "x"}, secrets: []corev1.Secret{targetSecret("a", "target", goodKubeconfig)}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			calls := 0
			members := newPlanner(&calls).plan([]corev1.Namespace{namespaceNamed("a", test.annotations)}, test.secrets)
			got := members["a"]
			reason := ""
			if got.problem != nil {
				reason = got.problem.reason
			}
			if reason != test.want || len(members) != 1 {
				t.Errorf("%d members, problem %v, want %q", len(members), got.problem, test.want)
			}
			if test.want == "" && (got.target.Host != "https://target" || got.settings.QPS != 1) {
				t.Errorf("member %+v", got)
			}
			if got.problem != nil && strings.Contains(got.problem.text, "passwd") {
				t.Errorf("the problem quotes the kubeconfig: %v", got.problem)
			}
		})
	}
}

// TestPlan_ChecksOnlyChanges checks that a member is checked again, and gets another key, exactly if something that it is made
// from changed.
func TestPlan_ChecksOnlyChanges(t *testing.T) {
	calls := 0
	p := newPlanner(&calls)
	namespaces := []corev1.Namespace{namespaceNamed("a", nil)}
	secrets := []corev1.Secret{targetSecret("a", "target", goodKubeconfig)}
	last, count := p.plan(namespaces, secrets)["a"].key, 1
	for i, step := range []struct {
		change  func()
		changes bool
	}{
		{func() { namespaces[0].Labels = map[string]string{"any": "label"} }, false},
		{func() { namespaces[0].Annotations = map[string]string{"any": "annotation"} }, false},
		{func() { secrets[0].ResourceVersion = "2" }, false},
		{func() { namespaces[0].Annotations[Prefix+"machine-drain-timeout"] = "1m" }, true},
		{func() { secrets[0].Data[KubeconfigKey] = []byte(goodKubeconfig + " ") }, true},
		{func() { namespaces[0].UID = "2" }, true},
	} {
		step.change()
		key := p.plan(namespaces, secrets)["a"].key
		if step.changes {
			count++
		}
		if (key != last) != step.changes || calls != count {
			t.Errorf("step %d: key changed: %t, %d checks, want %d", i, key != last, calls, count)
		}
		last = key
	}
}

// TestOwner_OnlyNamespacesOfChangedReplicasMove checks that each namespace has one owner, that replicas get similar shares, and
// that the other namespaces stay where they are when a replica leaves.
func TestOwner_OnlyNamespacesOfChangedReplicasMove(t *testing.T) {
	before, after := []string{"r1", "r2", "r3"}, []string{"r1", "r3"}
	shares := map[string]int{}
	for i := range 3000 {
		name := fmt.Sprintf("namespace-%d", i)
		was, is := ownerOf(name, before), ownerOf(name, after)
		shares[was]++
		if was != "r2" && was != is {
			t.Fatalf("%s moved from %s to %s", name, was, is)
		}
	}
	for replica, count := range shares {
		if count < 900 || count > 1100 {
			t.Errorf("%s has %d of 3000 namespaces", replica, count)
		}
	}
	if len(shares) != 3 {
		t.Errorf("shares %v", shares)
	}
}
