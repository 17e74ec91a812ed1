{{/* Where the usual runtimes keep what the agent reads on a Linux node. */}}

{{- define "sandglass.runtimeConfigDir" -}}
{{- $usual := dict "containerd" "/etc/containerd" "crio" "/etc/crio" "k3s" "/var/lib/rancher/k3s/agent/etc/containerd" "rke2" "/var/lib/rancher/rke2/agent/etc/containerd" -}}
{{- .Values.linux.runtimeConfigDir | default (get $usual .Values.linux.runtime) -}}
{{- end -}}

{{- define "sandglass.cniConfDir" -}}
{{- $usual := dict "k3s" "/var/lib/rancher/k3s/agent/etc/cni/net.d" -}}
{{- .Values.linux.cni.confDir | default (get $usual .Values.linux.runtime) | default "/etc/cni/net.d" -}}
{{- end -}}

{{- define "sandglass.cniBinDir" -}}
{{- $usual := dict "k3s" "/var/lib/rancher/k3s/data/cni" -}}
{{- .Values.linux.cni.binDir | default (get $usual .Values.linux.runtime) | default "/opt/cni/bin" -}}
{{- end -}}

{{/* Where the agent looks for it, whatever the directory is called on the node. */}}
{{- define "sandglass.runtimeConfigMount" -}}
{{- ternary "/etc/crio" "/etc/containerd" (eq .Values.linux.runtime "crio") -}}
{{- end -}}

{{- define "sandglass.criSocket" -}}
{{- $usual := dict "containerd" "/run/containerd/containerd.sock" "crio" "/run/crio/crio.sock" "k3s" "/run/k3s/containerd/containerd.sock" "rke2" "/run/k3s/containerd/containerd.sock" -}}
{{- .Values.linux.cri.socket | default (get $usual .Values.linux.runtime) -}}
{{- end -}}

{{/* Not empty if the agent has a directory to write to: for what waits for the collector, and for what the page shows. */}}
{{- define "sandglass.spools" -}}
{{- if .Values.otlp.spool.enabled }}true{{ end -}}
{{- end -}}

{{- define "sandglass.linuxConfig" -}}
{{- $endpoint := ternary (printf "unix://%s" (include "sandglass.criSocket" .)) "none" .Values.linux.cri.enabled -}}
{{- $own := dict "cni" (dict "conf_dir" "/etc/cni/net.d" "bin_dirs" (list "/opt/cni/bin")) "cri" (dict "endpoint" $endpoint) -}}
{{- if include "sandglass.spools" . }}{{ $_ := set $own "otlp" (dict "spool_directory" "/var/lib/sandglass/spool") }}{{ end -}}
{{- include "sandglass.config" (dict "root" . "own" $own "files" "/etc/sandglass") -}}
{{- end -}}

{{- define "sandglass.windowsConfig" -}}
{{- $own := dict "cri" (dict "endpoint" "none") -}}
{{- include "sandglass.config" (dict "root" . "own" $own "files" "C:/hpc/etc/sandglass") -}}
{{- end -}}
