{{/*
The certificates of the release, as JSON: authorities and the certificates that they sign. Both the chart's own job and
cert-manager get them from here. Each becomes a Secret with tls.crt, tls.key and ca.crt.
*/}}
{{- define "k8s-1m.certificates" -}}
{{- $name := include "k8s-1m.name" . -}}
{{- $authorities := list -}}
{{- $certificates := list -}}
{{- if or .Values.memEtcd.enabled .Values.etcdProxy.enabled -}}
  {{- $authorities = append $authorities (dict "name" "store" "secret" (printf "%s-store-ca" $name)) -}}
  {{- $certificates = append $certificates (dict "authority" "store" "secret" (printf "%s-store-client" $name)
      "commonName" "kube-apiserver-etcd-client" "dnsNames" list "uris" list "usages" (list "client")) -}}
{{- end -}}
{{- if .Values.memEtcd.enabled -}}
  {{- $service := printf "%s-mem-etcd" $name -}}
  {{- $hosts := concat (include "k8s-1m.serviceNames" (list . $service) | fromJsonArray) (list "localhost") -}}
  {{- range $i := until (int .Values.memEtcd.members) -}}
    {{- $hosts = append $hosts (include "k8s-1m.memberHost" (list $ $i)) -}}
  {{- end -}}
  {{- $certificates = append $certificates (dict "authority" "store" "secret" (printf "%s-mem-etcd" $name)
      "commonName" $service "dnsNames" (concat $hosts .Values.memEtcd.serverNames) "uris" list "usages" (list "server" "client")) -}}
{{- end -}}
{{- if and .Values.kubeGateway.enabled .Values.memEtcd.enabled -}}
  {{- $certificates = append $certificates (dict "authority" "store" "secret" (printf "%s-kube-gateway-store" $name)
      "commonName" "kube-gateway" "dnsNames" list "uris" list "usages" (list "client")) -}}
{{- end -}}
{{- if .Values.etcdProxy.enabled -}}
  {{- $service := printf "%s-etcd-proxy" $name -}}
  {{- $certificates = append $certificates (dict "authority" "store" "secret" $service
      "commonName" $service "dnsNames" (concat (include "k8s-1m.serviceNames" (list . $service) | fromJsonArray) .Values.etcdProxy.serverNames)
      "uris" list "usages" (list "server" "client")) -}}
{{- end -}}
{{- if and .Values.distScheduler.enabled .Values.distScheduler.shareNodes -}}
  {{- $authorities = append $authorities (dict "name" "replicas" "secret" (printf "%s-replicas-ca" $name)) -}}
  {{- range $i := until (int .Values.distScheduler.replicas) -}}
    {{- $replica := printf "%s-dist-scheduler-%d" $name $i -}}
    {{- $certificates = append $certificates (dict "authority" "replicas" "secret" $replica "commonName" $replica "dnsNames" list
        "uris" (list (printf "k8s-1m://replica/%s-dist-scheduler/%s" $name $replica)) "usages" (list "server" "client")) -}}
  {{- end -}}
{{- end -}}
{{ toJson (dict "authorities" $authorities "certificates" $certificates) }}
{{- end }}
