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

// writeSBOMs writes a software bill of materials for each program, as OS-ARCHITECTURE.cdx.json in a
// folder.
func writeSBOMs(folder, version string, programs []program) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, p := range programs {
		info, err := buildinfo.ReadFile(p.path)
		if err != nil {
			return fmt.Errorf("reading what %s was built from: %w", p.path, err)
		}
		name := strings.ReplaceAll(p.platform.String(), "/", "-") + ".cdx.json"
		if err := writeSBOM(filepath.Join(folder, name), billOf(info, version)); err != nil {
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
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return file.Close()
}

// billOf returns what a program is made of, as its linker noted: the modules and the standard
// library. It has no time and no serial number, so that equal programs have equal bills.
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
		if at == "" || at == "(devel)" { // from the program's own repository
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
