{{/* Names and labels of all objects. */}}

{{- define "sandglass.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "sandglass.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "sandglass.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "sandglass.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sandglass.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "sandglass.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* What a selector may hold: it can never be changed. */}}
{{- define "sandglass.selector" -}}
app.kubernetes.io/name: {{ include "sandglass.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sandglass.labels" -}}
{{ include "sandglass.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: sandglass
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Takes a dict: image (repository, tag, digest), version, and system (linux, windows). No registry serves the image, so that a
missing repository is an error with the commands that help, and not a pod whose image cannot be pulled. */}}
{{- define "sandglass.image" -}}
{{- if not .image.repository }}{{ include (printf "sandglass.missingImage.%s" .system) . | fail }}{{ end -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .version }}
{{- end -}}
{{- end -}}

{{/* "yes" when an object of the Prometheus operator is to be made. Takes a dict: root, enabled (auto, true, false), kind. */}}
{{- define "sandglass.wanted" -}}
{{- $known := .root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind) -}}
{{- if eq (toString .enabled) "auto" -}}
{{- if $known }}yes{{ end -}}
{{- else if eq (toString .enabled) "true" -}}
{{- if not $known }}{{ fail (printf "this cluster does not know monitoring.coreos.com/v1 %s: install the Prometheus operator first, or set enabled to auto" .kind) }}{{ end -}}
yes
{{- end -}}
{{- end -}}

{{- define "sandglass.missingImage.linux" }}
image.repository is not set, and no public registry serves this image. Build it, push it, set it:
  make image
  skopeo copy oci-archive:target/image/sandglass-amd64.tar docker://REGISTRY/sandglass:{{ .version }}
  helm upgrade --install sandglass ... --set image.repository=REGISTRY/sandglass
{{- end -}}

{{- define "sandglass.missingImage.windows" }}
windows.image.repository is not set, and no public registry serves this image. Build it, push it, set it:
  docker buildx build --platform windows/amd64 --file deploy/image/Dockerfile.windows --tag REGISTRY/sandglass-windows:{{ .version }} target/x86_64-pc-windows-gnu/release
  docker push REGISTRY/sandglass-windows:{{ .version }}
  helm upgrade --install sandglass ... --set windows.image.repository=REGISTRY/sandglass-windows
{{- end -}}
