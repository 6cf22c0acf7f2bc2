package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeSBOMs writes a software bill of materials, including the packages, for each program, as
// OS-ARCHITECTURE.cdx.json in a directory.
func writeSBOMs(dir, version string, packages []debian, programs []program) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range programs {
		info, err := buildinfo.ReadFile(p.path)
		if err != nil {
			return fmt.Errorf("cannot read the build information of %s: %w", p.path, err)
		}
		bill := billOf(info, version)
		for _, one := range packages {
			*bill.Components = append(*bill.Components, one.component(p.platform.Architecture))
		}
		name := strings.ReplaceAll(p.platform.String(), "/", "-") + ".cdx.json"
		if err := writeSBOM(filepath.Join(dir, name), bill); err != nil {
			return err
		}
	}
	return nil
}

func writeSBOM(path string, bill *cdx.BOM) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := cdx.NewBOMEncoder(file, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bill); err != nil {
		_ = file.Close()
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return file.Close()
}

// billOf returns the components of a program, as recorded by its linker: the modules and the standard library. It
// contains no time and no serial number, so that equal programs have equal bills.
func billOf(info *debug.BuildInfo, version string) *cdx.BOM {
	bill := cdx.NewBOM()
	program := component(cdx.ComponentTypeApplication, info.Main.Path, version)
	bill.Metadata = &cdx.Metadata{Component: &program}
	components := []cdx.Component{component(cdx.ComponentTypeLibrary, "std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		at := module.Version
		if module.Replace != nil {
			at = module.Replace.Version
		}
		if at == "" || at == "(devel)" { // a module of the program's own repository
			at = version
		}
		components = append(components, component(cdx.ComponentTypeLibrary, module.Path, at))
	}
	bill.Components = &components
	return bill
}

func component(kind cdx.ComponentType, name, version string) cdx.Component {
	url := "pkg:golang/" + name + "@" + version
	return cdx.Component{BOMRef: url, Type: kind, Name: name, Version: version, PackageURL: url}
}

// debian is a Debian package.
type debian struct{ name, version string }

// component returns the package as a component of a bill.
func (d debian) component(architecture string) cdx.Component {
	// In these URLs, the colon of an epoch and plus signs are encoded.
	url := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", escaped(d.name), escaped(d.version), architecture)
	return cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: d.name, Version: d.version, PackageURL: url}
}

func escaped(text string) string {
	return strings.NewReplacer("%", "%25", ":", "%3A", "+", "%2B").Replace(text)
}

// readPackages reads a file with one line NAME VERSION per package. It returns none if path is empty.
func readPackages(path string) ([]debian, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var packages []debian
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			return nil, fmt.Errorf("%s: invalid line %q; expected NAME VERSION", path, line)
		}
		packages = append(packages, debian{fields[0], fields[1]})
	}
	return packages, nil
}
