{{- define "millwright.labels" -}}
app.kubernetes.io/name: millwright
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "millwright.machineNamespace" -}}
{{ .Values.machineNamespace | default .Release.Namespace }}
{{- end }}

{{/* Name of an object that other installations in this cluster also have. */}}
{{- define "millwright.shared" -}}
{{ index . 1 }}-{{ (index . 0).Release.Namespace }}
{{- end }}

{{/* What is installed: names of Deployments, roles and accounts. */}}
{{- define "millwright.plan" -}}
{{- $mcm := "machine-controller-manager" }}{{- $mc := "machine-controller" }}
{{- $mode := .Values.mode }}
{{- $control := and .Values.rbac.create (not .Values.control.kubeconfigSecret) }}
{{- $target := and .Values.rbac.create (not .Values.target.kubeconfigSecret) (not .Values.target.none) }}
{{- if eq $mode "one-pod" }}
deployments: {{ dict $mcm (list $mcm $mc) | toJson }}
control: {{ ternary (dict $mcm $mcm $mc $mcm) dict $control | toJson }}
target: {{ ternary (dict "target" $mcm) dict $target | toJson }}
accounts: [{{ $mcm }}]
{{- else if eq $mode "two-deployments" }}
deployments: {{ dict $mcm (list $mcm) $mc (list $mc) | toJson }}
control: {{ ternary (dict $mcm $mcm $mc $mc) dict $control | toJson }}
target: {{ ternary (dict "sets" $mcm "target" $mc) dict $target | toJson }}
accounts: [{{ $mcm }}, {{ $mc }}]
{{- else if eq $mode "whole" }}
deployments: {{ dict $mcm (list "manager") | toJson }}
control: {{ ternary (dict "whole" $mcm) dict $control | toJson }}
target: {{ ternary (dict "target" $mcm) dict $target | toJson }}
accounts: [{{ $mcm }}]
{{- else if eq $mode $mcm }}
deployments: {{ dict $mcm (list $mcm) | toJson }}
control: {{ ternary (dict $mcm $mcm) dict $control | toJson }}
target: {{ ternary (dict "sets" $mcm) dict $target | toJson }}
accounts: [{{ $mcm }}]
{{- else if eq $mode $mc }}
deployments: {{ dict $mc (list $mc) | toJson }}
control: {{ ternary (dict $mc $mc) dict $control | toJson }}
target: {{ ternary (dict "target" $mc) dict $target | toJson }}
accounts: [{{ $mc }}]
{{- else if has $mode (list "vm-controller" "load-balancer" "fleet") }}
deployments: {}
control: {}
target: {}
accounts: []
{{- else if eq $mode "target" }}
deployments: {}
control: {}
target: {target: {{ $mcm }}}
accounts: [{{ $mcm }}]
{{- else }}
deployments: {}
control: {}
target: {sets: {{ $mcm }}, target: {{ $mc }}}
accounts: [{{ $mcm }}, {{ $mc }}]
{{- end }}
{{- end }}

{{/* Port of a container, name and number: root, container. */}}
{{- define "millwright.port" -}}
{{- $values := (index . 0).Values }}{{- $name := index . 1 }}
{{- if eq $name "machine-controller" }}
{name: providermetrics, number: {{ $values.machineController.port }}}
{{- else if eq $name "manager" }}
{name: metrics, number: {{ $values.machineController.port }}}
{{- else }}
{name: metrics, number: {{ $values.machineControllerManager.port }}}
{{- end }}
{{- end }}

{{/* The roles of a file, and their bindings to an account: root, file, account. */}}
{{- define "millwright.roles" -}}
{{- $root := index . 0 }}
{{- $account := index . 2 }}
{{- range splitList "\n---\n" ($root.Files.Get (printf "files/rbac/%s" (index . 1))) }}
{{- $role := fromYaml . }}
{{- $binding := dict "namespace" (include "millwright.machineNamespace" $root) "name" $role.metadata.name }}
{{- if or $role.metadata.namespace (eq $role.kind "ClusterRole") }}
{{- $binding = dict "name" (include "millwright.shared" (list $root $role.metadata.name)) }}
{{- with $role.metadata.namespace }}
{{- $_ := set $binding "namespace" . }}
{{- end }}
{{- end }}
{{- $_ := set $binding "labels" (include "millwright.labels" $root | fromYaml) }}
{{- $_ := set $role "metadata" $binding }}
---
{{ toYaml $role }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $role.kind }}Binding
metadata:
  {{- toYaml $binding | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $role.kind }}
  name: {{ $binding.name }}
subjects:
- kind: ServiceAccount
  name: {{ $account }}
  namespace: {{ $root.Release.Namespace }}
{{- end }}
{{- end }}

{{/* A container: root, name. */}}
{{- define "millwright.container" -}}
{{- $root := index . 0 }}{{- $name := index . 1 }}
{{- $values := $root.Values }}
{{- $port := include "millwright.port" (list $root $name) | fromYaml }}
{{- $own := $values.machineController }}{{- $of := "machineController" }}
{{- if eq $name "machine-controller-manager" }}
{{- $own = $values.machineControllerManager }}{{- $of = "machineControllerManager" }}
{{- end }}
{{- $repository := required "image.repository is required: the repository of the image" ($values.image.repository | default $own.image.repository) }}
{{- $tag := $values.image.tag | default $root.Chart.AppVersion }}
{{- $command := $own.command }}
{{- $drives := include "millwright.drives" (list $name) }}
{{- $sidecar := and $drives $values.driverSidecar.image.repository }}
{{- $network := and $drives $values.driverNetwork.tlsSecret }}
{{- $warns := and $drives $values.warnings.tlsSecret }}
{{- if eq $name "manager" }}
{{- $command = list "/usr/bin/millwright" "manager" }}
{{- else if $own.image.repository }}
{{- $repository = $own.image.repository }}
{{- $tag = required (printf "%s.image.tag is required if the image has its own repository" $of) $own.image.tag }}
{{- end }}
- name: {{ ternary "machine-controller-manager" $name (eq $name "manager") }}
  image: {{ printf "%s:%s" $repository $tag | quote }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  command: {{ toJson $command }}
  args:
  - --control-kubeconfig={{ ternary "/etc/millwright/control/kubeconfig" "inClusterConfig" (not (empty $values.control.kubeconfigSecret)) }}
  - --target-kubeconfig={{ if $values.target.none }}none{{ else if $values.target.kubeconfigSecret }}/etc/millwright/target/kubeconfig{{ end }}
  - --namespace={{ $values.machineNamespace | default "$(POD_NAMESPACE)" }}
  - --port={{ $port.number }}
  {{- if and $values.driver (ne $name "machine-controller-manager") }}
  - --driver={{ $values.driver }}
  {{- with $values.installation }}
  - --installation={{ . }}
  {{- end }}
  {{- end }}
  {{- if $sidecar }}
  - --driver-socket=/run/millwright/drivers.sock
  {{- end }}
  {{- if $network }}
  - --driver-listen=:{{ $values.driverNetwork.port }}
  - --driver-tls-cert-file=/etc/millwright/drivers/tls.crt
  - --driver-tls-private-key-file=/etc/millwright/drivers/tls.key
  - --driver-client-ca-file=/etc/millwright/drivers/ca.crt
  {{- end }}
  {{- if $warns }}
  - --webhook-port={{ $values.warnings.port }}
  - --webhook-cert-dir=/etc/millwright/webhook
  {{- end }}
  {{- range concat $values.extraArgs $own.extraArgs }}
  - {{ . | quote }}
  {{- end }}
  env:
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  {{- with $values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  ports:
  - name: {{ $port.name }}
    containerPort: {{ $port.number }}
  {{- if $network }}
  - name: drivers
    containerPort: {{ $values.driverNetwork.port }}
  {{- end }}
  {{- if $warns }}
  - name: webhook
    containerPort: {{ $values.warnings.port }}
  {{- end }}
  livenessProbe:
    httpGet:
      path: {{ ternary "/livez" $own.livenessPath (eq $name "manager") }}
      port: {{ $port.name }}
  readinessProbe:
    httpGet:
      path: {{ ternary "/readyz" $own.readinessPath (eq $name "manager") }}
      port: {{ $port.name }}
  {{- with $own.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  {{- $mounts := list }}
  {{- range $cluster := list "control" "target" }}
  {{- if (index $values $cluster).kubeconfigSecret }}
  {{- $mounts = append $mounts (dict "name" $cluster "mountPath" (printf "/etc/millwright/%s" $cluster) "readOnly" true) }}
  {{- end }}
  {{- end }}
  {{- if $sidecar }}
  {{- $mounts = append $mounts (dict "name" "driver-socket" "mountPath" "/run/millwright") }}
  {{- end }}
  {{- if $network }}
  {{- $mounts = append $mounts (dict "name" "driver-tls" "mountPath" "/etc/millwright/drivers" "readOnly" true) }}
  {{- end }}
  {{- if $warns }}
  {{- $mounts = append $mounts (dict "name" "webhook" "mountPath" "/etc/millwright/webhook" "readOnly" true) }}
  {{- end }}
  volumeMounts:
  {{- concat $mounts $values.extraVolumeMounts | default list | toYaml | nindent 4 }}
{{- end }}

{{/* Not empty if drivers register with one of these containers. */}}
{{- define "millwright.drives" -}}
{{- if or (has "machine-controller" .) (has "manager" .) }}true{{ end }}
{{- end }}

{{/* The container of a driver. */}}
{{- define "millwright.driver" -}}
{{- $own := .Values.driverSidecar }}
- name: driver
  image: {{ printf "%s:%s" $own.image.repository (required "driverSidecar.image.tag is required if driverSidecar.image.repository is set" $own.image.tag) | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- with $own.command }}
  command: {{ toJson . }}
  {{- end }}
  args: {{ toJson $own.args }}
  {{- with $own.env }}
  env:
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with $own.livenessProbe }}
  livenessProbe:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $own.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  {{- $mounts := list (dict "name" "driver-socket" "mountPath" "/run/millwright") }}
  volumeMounts:
  {{- concat $mounts $own.volumeMounts | default list | toYaml | nindent 4 }}
{{- end }}
