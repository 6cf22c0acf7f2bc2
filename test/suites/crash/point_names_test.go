package crash

import "testing"

// TestPointName_IsDeterministic checks that random names are replaced by numbers in order of appearance,
// consistently.
func TestPointName_IsDeterministic(t *testing.T) {
	namesOf := func(first, second string) []string {
		a := newAliases()
		a.keep("pool")
		a.of("machines", "from-the-preparation")
		a.reset()
		return []string{
			a.of("machinesets", "pool"), a.of("machines", first), a.of("machines/status", second),
			a.of("nodes", first), a.of("machines", second), a.of("machineclasses", ""),
		}
	}
	want := []string{
		"machinesets pool", "machines machines#1", "machines/status machines#2",
		"nodes machines#1", "machines machines#2", "machineclasses",
	}
	for _, names := range [][2]string{{"pool-x7", "pool-b2"}, {"pool-b2", "pool-x7"}} {
		for i, got := range namesOf(names[0], names[1]) {
			if got != want[i] {
				t.Errorf("with %v, the name is %q, want %q", names, got, want[i])
			}
		}
	}
}

// TestRules_SecretLeaksAreFound checks that a token's secret is known from the moment it is written.
func TestRules_SecretLeaksAreFound(t *testing.T) {
	l := &leaks{}
	l.token([]byte(`{"type":"bootstrap.kubernetes.io/token","data":{"token-secret":"czNjcjN0","token-id":"aWQ="}}`))
	l.search("a line", []byte("all is well, id"))
	if found := l.all(); len(found) != 0 {
		t.Errorf("found %v where nothing is", found)
	}
	for _, text := range []string{"token id.s3cr3t was refused", `{"data":"czNjcjN0"}`} {
		before := len(l.all())
		l.search("a line", []byte(text))
		if len(l.all()) != before+1 {
			t.Errorf("%q is not found", text)
		}
	}
}
