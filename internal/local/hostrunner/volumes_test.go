package hostrunner

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestVolume_Directories(t *testing.T) {
	dir := t.TempDir()
	volumesDir := filepath.Join(dir, "volumes")
	if err := os.MkdirAll(filepath.Join(volumesDir, "disk"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(volumesDir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"out": dir, "up": "..", "inner": "disk"} {
		if err := os.Symlink(target, filepath.Join(volumesDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	at := func(path string) corev1.PersistentVolumeSpec {
		return corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: path}}}
	}
	local := corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
		Local: &corev1.LocalVolumeSource{Path: filepath.Join(volumesDir, "disk")}}}
	remote := corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
		NFS: &corev1.NFSVolumeSource{Path: filepath.Join(volumesDir, "disk")}}}
	cases := map[string]struct {
		limit string
		spec  corev1.PersistentVolumeSpec
		ok    bool
	}{
		"host path":       {volumesDir, at(filepath.Join(volumesDir, "disk")), true},
		"local":           {volumesDir, local, true},
		"no limit":        {"", at(dir), true},
		"outside":         {volumesDir, at(dir), false},
		"around a dot":    {volumesDir, at(volumesDir + "/disk/../.."), false},
		"a link out":      {volumesDir, at(filepath.Join(volumesDir, "out")), false},
		"a link up":       {volumesDir, at(filepath.Join(volumesDir, "up")), false},
		"behind a link":   {volumesDir, at(filepath.Join(volumesDir, "out", "volumes", "disk")), false},
		"a link inside":   {volumesDir, at(filepath.Join(volumesDir, "inner")), true},
		"the limit":       {volumesDir, at(volumesDir), false},
		"like the limit":  {filepath.Join(dir, "vol"), at(filepath.Join(volumesDir, "disk")), false},
		"relative":        {"", at("disk"), false},
		"missing":         {volumesDir, at(filepath.Join(volumesDir, "other")), false},
		"not a directory": {volumesDir, at(filepath.Join(volumesDir, "file")), false},
		"remote":          {volumesDir, remote, false},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			path, err := dirOf(&corev1.PersistentVolume{Spec: test.spec}, test.limit)
			if (err == nil) != test.ok || (path != "") != test.ok {
				t.Errorf("it gives %q, %v", path, err)
			}
			if info, err := os.Lstat(path); test.ok && (err != nil || !info.IsDir()) {
				t.Errorf("%q is not the directory itself, which later links could not change", path)
			}
		})
	}
}
