package join

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
)

const token = "abcdef.0123456789abcdef"

// sign creates a signature as in RFC 7515.
func sign(header, content, secret string) string {
	encode := base64.RawURLEncoding.EncodeToString
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(encode([]byte(header)) + "." + encode([]byte(content))))
	return encode([]byte(header)) + ".." + encode(mac.Sum(nil))
}

const (
	header     = `{"alg":"HS256","kid":"abcdef"}`
	secret     = "0123456789abcdef"
	kubeconfig = "clusters:\n- name: \"\"\n  cluster:\n    server: https://127.0.0.1:1\n    certificate-authority-data: Y2VydGlmaWNhdGU=\n"
)

func info(kubeconfig, signature string) map[string]string {
	return map[string]string{"kubeconfig": kubeconfig, "jws-kubeconfig-abcdef": signature}
}

func TestAuthorityOf(t *testing.T) {
	got, err := authorityOf(info(kubeconfig, sign(header, kubeconfig, secret)), token)
	if err != nil || string(got) != "certificate" {
		t.Errorf("authorityOf = %q, %v, want the certificate", got, err)
	}
}

func TestAuthorityOf_RejectsOtherAuthorities(t *testing.T) {
	good := sign(header, kubeconfig, secret)
	two := kubeconfig + strings.TrimPrefix(kubeconfig, "clusters:\n")
	for name, data := range map[string]map[string]string{
		"Nothing":        nil,
		"OtherToken":     {"kubeconfig": kubeconfig, "jws-kubeconfig-fedcba": good},
		"OtherSecret":    info(kubeconfig, sign(header, kubeconfig, "fedcba9876543210")),
		"OtherContent":   info(kubeconfig+" ", good),
		"NoAlgorithm":    info(kubeconfig, sign(`{"alg":"none","kid":"abcdef"}`, kubeconfig, secret)),
		"OtherKey":       info(kubeconfig, sign(`{"alg":"HS256","kid":"fedcba"}`, kubeconfig, secret)),
		"HeaderNoJSON":   info(kubeconfig, sign("x", kubeconfig, secret)),
		"HeaderNoBase64": info(kubeconfig, "!.."),
		"NoSignature":    info(kubeconfig, good[:strings.LastIndex(good, ".")+1]),
		"NotDetached":    info(kubeconfig, strings.Replace(good, "..", ".x.", 1)),
		"TwoParts":       info(kubeconfig, strings.Replace(good, "..", ".", 1)),
		"TwoClusters":    info(two, sign(header, two, secret)),
		"NoYAML":         info("\t", sign(header, "\t", secret)),
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := authorityOf(data, token); !errors.Is(err, ErrDiscovery) {
				t.Errorf("authorityOf = %q, %v, want ErrDiscovery", got, err)
			}
		})
	}
}
