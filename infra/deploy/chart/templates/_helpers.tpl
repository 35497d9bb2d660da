{{/* Labels of an object of the process `.name`. */}}
{{- define "stepstream.labels" -}}
app.kubernetes.io/name: stepstream
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{/* Metrics: every process has them, those with an HTTP port there. */}}
{{- define "stepstream.port" -}}
{{ .process.port | default .root.Values.settings.metrics.port }}
{{- end }}

{{/* Brokers in the one form that KEDA takes, host:port,host:port, from every form of `kafka.bootstrap`. */}}
{{- define "stepstream.brokers" -}}
{{- $brokers := list -}}
{{- range regexSplit "[,\\s]+" (trimAll ", " .) -1 -}}
{{- $broker := regexReplaceAll "^[A-Za-z_]+://" . "" | trimSuffix "/" -}}
{{- if regexMatch "^[^\\[]*:[^\\[]*:" $broker -}}{{- $broker = printf "[%s]" $broker -}}{{- end -}}
{{- if not (regexMatch ":[0-9]+$" $broker) -}}{{- $broker = printf "%s:9092" $broker -}}{{- end -}}
{{- $brokers = append $brokers $broker -}}
{{- end -}}
{{- join "," $brokers -}}
{{- end }}

{{/* Fields that all pods share. */}}
{{- define "stepstream.pod" -}}
enableServiceLinks: false
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "stepstream.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "stepstream.secrets" -}}
envFrom:
{{- range . }}
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{/* Account of the Kafka user of a program, and its Secret, which Strimzi makes. */}}
{{- define "stepstream.kafkaUser" -}}
{{- if .root.Values.strimzi.users }}
{{- $user := printf "%sstepstream-%s" (.root.Values.settings.kafka.prefix | default "") .user }}
- {name: STEPSTREAM_KAFKA_SECURITY_PROTOCOL, value: SASL_SSL}
- {name: STEPSTREAM_KAFKA_SASL_MECHANISM, value: SCRAM-SHA-512}
- {name: STEPSTREAM_KAFKA_SASL_USERNAME, value: {{ $user }}}
- name: STEPSTREAM_KAFKA_SASL_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $user }}, key: password}}
- {name: STEPSTREAM_KAFKA_SSL_CA_LOCATION, value: /etc/kafka-ca/ca.crt}
{{- end }}
{{- end }}

{{- define "stepstream.kafkaMount" -}}
{{- if .Values.strimzi.users }}
- {name: kafka-ca, mountPath: /etc/kafka-ca, readOnly: true}
{{- end }}
{{- end }}

{{- define "stepstream.kafkaVolume" -}}
{{- if .Values.strimzi.users }}
- name: kafka-ca
  secret: {secretName: {{ .Values.strimzi.cluster }}-cluster-ca-cert}
{{- end }}
{{- end }}
