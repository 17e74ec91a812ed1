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

{{/* Page and API. Beyond loopback they need a token or clients' certificates; the agent would refuse to start. */}}
{{- define "sandglass.pageListen" -}}
{{- $host := ternary "[::1]" "127.0.0.1" (eq .Values.http.ipFamily "IPv6") -}}
{{- if eq .Values.page.address "node" -}}
{{- if not (or .Values.page.tokenSecret.name (and .Values.page.tls.secretName .Values.page.tls.clientCertificates)) -}}
{{- fail "page.address=node opens the page to everyone who reaches the node: set page.tokenSecret.name, or page.tls.secretName with page.tls.clientCertificates=true" -}}
{{- end -}}
{{- $host = ternary "[$(HOST_IP)]" "$(HOST_IP)" (eq .Values.http.ipFamily "IPv6") -}}
{{- end -}}
{{- if eq (int .Values.page.port) (int .Values.http.port) }}{{ fail "page.port must differ from http.port" }}{{ end -}}
{{ $host }}:{{ .Values.page.port }}
{{- end -}}

{{/* The agent's configuration file. Takes a dict: root, own (what is particular to the system). */}}
{{- define "sandglass.config" -}}
{{- $otlp := get .own "otlp" | default dict -}}
{{- with .root.Values.otlp -}}
{{- if .endpoint }}{{ $_ := set $otlp "endpoint" .endpoint }}{{ $_ := set $otlp "protocol" .protocol }}{{ end -}}
{{- if .resource }}{{ $_ := set $otlp "resource" .resource }}{{ end -}}
{{- if .tls.secretName }}{{ $_ := set $otlp "ca_file" (printf "%s/tls/ca.crt" $.files) }}{{ end -}}
{{- if and .tls.secretName .tls.clientCertificate -}}
{{- $_ := set $otlp "client_certificate_file" (printf "%s/tls/tls.crt" $.files) -}}
{{- $_ := set $otlp "client_key_file" (printf "%s/tls/tls.key" $.files) -}}
{{- end -}}
{{- end -}}
{{- $page := dict -}}
{{- with .root.Values.page -}}
{{- if .tokenSecret.name }}{{ $_ := set $page "token_file" (printf "%s/page/token" $.files) }}{{ end -}}
{{- if .tls.secretName -}}
{{- $_ := set $page "certificate_file" (printf "%s/page/tls.crt" $.files) -}}
{{- $_ := set $page "key_file" (printf "%s/page/tls.key" $.files) -}}
{{- if .tls.clientCertificates }}{{ $_ := set $page "client_ca_file" (printf "%s/page/ca.crt" $.files) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $config := .own -}}
{{- if $page }}{{ $_ := set $config "page" $page }}{{ end -}}
{{- if $otlp }}{{ $_ := set $config "otlp" $otlp }}{{ end -}}
{{- include "sandglass.longer" (dict "config" .root.Values.config "section" "correlation" "long" "deadline" "short" "settle" "longDefault" "5m" "shortDefault" "500ms") -}}
{{- include "sandglass.longer" (dict "config" .root.Values.config "section" "traffic" "long" "ready_deadline" "short" "ready_grace" "longDefault" "30s" "shortDefault" "1s") -}}
{{- include "sandglass.longer" (dict "config" .root.Values.config "section" "traffic" "long" "lookup_deadline" "short" "search_gap" "longDefault" "10s" "shortDefault" "100ms") -}}
{{- mustMergeOverwrite $config (deepCopy .root.Values.config) | toYaml -}}
{{- end -}}

{{/* Fails where one length of time must be longer than another, which a schema cannot say. Takes a dict: config, section, long,
short, and the agent's defaults longDefault and shortDefault. */}}
{{- define "sandglass.longer" -}}
{{- $section := get .config .section | default dict -}}
{{- $long := get $section .long | default .longDefault -}}
{{- $short := get $section .short | default .shortDefault -}}
{{- if le (include "sandglass.milliseconds" $long | int64) (include "sandglass.milliseconds" $short | int64) -}}
{{- fail (printf "config.%s.%s (%s) must be longer than config.%s.%s (%s)" .section .long $long .section .short $short) -}}
{{- end -}}
{{- end -}}

{{- define "sandglass.milliseconds" -}}
{{- $number := regexFind "^[0-9]+" . -}}
{{- $factor := get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000) (regexFind "[a-z]+$" .) -}}
{{- mul (regexReplaceAll "^0+([0-9])" $number "$1" | int64) $factor -}}
{{- end -}}

{{/* AppArmor before Kubernetes 1.30. */}}
{{- define "sandglass.appArmorAnnotation" -}}
{{- if eq .type "Localhost" -}}
localhost/{{ required "linux.appArmorProfile.localhostProfile is not set: the name of the profile on the nodes" .localhostProfile }}
{{- else -}}
{{- get (dict "RuntimeDefault" "runtime/default" "Unconfined" "unconfined") .type -}}
{{- end -}}
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

{{/* The part of a configuration that is read at a start only: a change of it makes new pods. The keys that are left out are LIVE_KEYS of
agent/src/app/live.rs: a running agent loads them from its volume, and keeps its open traces. Takes the configuration's text. */}}
{{- define "sandglass.readAtStart" -}}
{{- $config := fromYaml . -}}
{{- range $key := list "correlation.stuck_after" "otlp.good_per_thousand" "otlp.sampling" "otlp.slow_ms" "store.max_traces" -}}
{{- $parts := splitList "." $key -}}
{{- $section := get $config (first $parts) -}}
{{- if kindIs "map" $section -}}
{{- $_ := unset $section (last $parts) -}}
{{- if not $section }}{{ $_ := unset $config (first $parts) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{- define "sandglass.podAnnotations" -}}
checksum/config: {{ include "sandglass.readAtStart" .config | sha256sum }}
{{- if and .root.Values.scrapeAnnotations (eq .root.Values.http.address "node") (not (include "sandglass.wanted" (dict "root" .root "enabled" .root.Values.podMonitor.enabled "kind" "PodMonitor"))) }}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .root.Values.http.port | quote }}
prometheus.io/path: /metrics
{{- end }}
{{- with .own }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "sandglass.ports" -}}
- name: http
  containerPort: {{ .Values.http.port }}
  hostPort: {{ .Values.http.port }}
  protocol: TCP
{{- if eq .Values.page.address "node" }}
- name: page
  containerPort: {{ .Values.page.port }}
  hostPort: {{ .Values.page.port }}
  protocol: TCP
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
      {{- with .root.Values.page }}
      {{- if .tokenSecret.name }}
      - secret:
          name: {{ .tokenSecret.name }}
          items:
            - key: {{ .tokenSecret.key }}
              path: page/token
      {{- end }}
      {{- if .tls.secretName }}
      - secret:
          name: {{ .tls.secretName }}
          items:
            - key: tls.crt
              path: page/tls.crt
            - key: tls.key
              path: page/tls.key
            {{- if .tls.clientCertificates }}
            - key: ca.crt
              path: page/ca.crt
            {{- end }}
      {{- end }}
      {{- end }}
{{- end -}}
