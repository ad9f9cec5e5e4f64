{{- define "shardbroker.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "shardbroker.headless" -}}
{{ include "shardbroker.name" . }}-nodes
{{- end }}

{{- define "shardbroker.domain" -}}
{{ include "shardbroker.headless" . }}.{{ .Release.Namespace }}.svc.{{ .Values.cluster.domain }}
{{- end }}

{{- define "shardbroker.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shardbroker.labels" -}}
{{ include "shardbroker.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "shardbroker.isCluster" -}}
{{- if gt (int .Values.replicas) 1 }}yes{{ end }}
{{- end }}

{{- define "shardbroker.cookieSecret" -}}
{{ .Values.cluster.cookieSecret | default (printf "%s-cookie" (include "shardbroker.name" .)) }}
{{- end }}
