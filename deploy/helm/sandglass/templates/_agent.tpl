{{/* What both DaemonSets share. */}}

{{- define "sandglass.listen" -}}
{{- if eq .Values.http.address "loopback" -}}
127.0.0.1:{{ .Values.http.port }}
{{- else if eq .Values.http.ipFamily "IPv6" -}}
[$(HOST_IP)]:{{ .Values.http.port }}
{{- else -}}
$(HOST_IP):{{ .Values.http.port }}
{{- end -}}
{{- end -}}

{{/* The agent's configuration file. Takes a dict: root, own (what is particular to the system). */}}
{{- define "sandglass.config" -}}
{{- $otlp := dict -}}
{{- with .root.Values.otlp -}}
{{- if .endpoint }}{{ $_ := set $otlp "endpoint" .endpoint }}{{ $_ := set $otlp "protocol" .protocol }}{{ end -}}
{{- if .resource }}{{ $_ := set $otlp "resource" .resource }}{{ end -}}
{{- if .tls.secretName }}{{ $_ := set $otlp "ca_file" (printf "%s/tls/ca.crt" $.files) }}{{ end -}}
{{- if and .tls.secretName .tls.clientCertificate -}}
{{- $_ := set $otlp "client_certificate_file" (printf "%s/tls/tls.crt" $.files) -}}
{{- $_ := set $otlp "client_key_file" (printf "%s/tls/tls.key" $.files) -}}
{{- end -}}
{{- end -}}
{{- $config := .own -}}
{{- if $otlp }}{{ $_ := set $config "otlp" $otlp }}{{ end -}}
{{- mustMergeOverwrite $config (deepCopy .root.Values.config) | toYaml -}}
{{- end -}}

{{- define "sandglass.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: HOST_IP
  valueFrom:
    fieldRef:
      fieldPath: status.hostIP
- name: SANDGLASS_LOG
  value: {{ .Values.log | quote }}
{{- with .Values.otlp.headersSecret }}
{{- if .name }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef:
      name: {{ .name }}
      key: {{ .key }}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The event loop moves; the process probe is attached. Loading it takes half a second, on a busy node some seconds. */}}
{{- define "sandglass.probes" -}}
startupProbe:
  httpGet: {{- include "sandglass.ask" (dict "root" . "path" "/readyz") | nindent 4 }}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {{- include "sandglass.ask" (dict "root" . "path" "/healthz") | nindent 4 }}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
readinessProbe:
  httpGet: {{- include "sandglass.ask" (dict "root" . "path" "/readyz") | nindent 4 }}
  periodSeconds: 15
  timeoutSeconds: 5
{{- end -}}

{{- define "sandglass.ask" -}}
path: {{ .path }}
port: http
{{- if eq .root.Values.http.address "loopback" }}
host: 127.0.0.1
{{- end }}
{{- end -}}

{{- define "sandglass.podAnnotations" -}}
checksum/config: {{ .config | sha256sum }}
{{- if and .root.Values.scrapeAnnotations (eq .root.Values.http.address "node") (not (include "sandglass.wanted" (dict "root" .root "enabled" .root.Values.podMonitor.enabled "kind" "PodMonitor"))) }}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .root.Values.http.port | quote }}
prometheus.io/path: /metrics
{{- end }}
{{- with .own }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Configuration and certificates in one volume: nothing can be mounted inside a read-only one. */}}
{{- define "sandglass.configVolume" -}}
- name: config
  projected:
    sources:
      - configMap:
          name: {{ .name }}
      {{- with .root.Values.otlp.tls }}
      {{- if .secretName }}
      - secret:
          name: {{ .secretName }}
          items:
            - key: ca.crt
              path: tls/ca.crt
            {{- if .clientCertificate }}
            - key: tls.crt
              path: tls/tls.crt
            - key: tls.key
              path: tls/tls.key
            {{- end }}
      {{- end }}
      {{- end }}
{{- end -}}
