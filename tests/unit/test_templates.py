"""The part of Go's templates that files with values use."""

from __future__ import annotations

import pytest

from moorage.cli.exit_codes import Failure
from moorage.cli.go_template import render

VALUES = {"A": "x", "L": ["p", "q"], "M": {"k": {"n": 1}}, "E": "", "N": 3, "T": True}


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("no tags", "no tags"),
        ("a {{.A}} b {{ .M.k.n }} {{.T}}", "a x b 1 true"),
        ("{{- range $i, $x := .L }}\n- {{ $i }}:{{ $x }}\n{{- end }}", "\n- 0:p\n- 1:q"),
        ("{{ range .L }}[{{ . }}/{{ $.A }}]{{ end }}", "[p/x][q/x]"),
        ("{{ range $k, $v := .M }}{{ $k }}={{ $v.n }}{{ end }}", "k=1"),
        ("{{ range .E }}x{{ else }}empty{{ end }}", "empty"),
        ("{{ if .E }}yes{{ else if eq .N 3 }}three{{ else }}no{{ end }}", "three"),
        ("{{ if .A }}yes{{ else if eq .N 3 }}three{{ else }}no{{ end }}", "yes"),
        ("{{ if .E }}a{{ if .A }}b{{ else }}c{{ end }}d{{ else }}e{{ end }}", "e"),
        ('{{ range .L }}{{ if eq . "p" }}P{{ else }}Q{{ end }}{{ end }}', "PQ"),
        ("{{/* a comment */}}{{ .A | quote }} {{ index .L 1 }} {{ .Values.A }}", '"x" q x'),
        ('{{ with .M }}{{ .k.n }}{{ end }}{{ .E | default "d" }}', "1d"),
        ('{{ $y := .A }}{{ $y }}{{ printf "%s-%d" $y 4 }}', "xx-4"),
        ("{{ if and .A (not .E) }}both{{ end }}", "both"),
        ("a  {{- .A -}}  b", "axb"),
    ],
)
def test_rendered(text: str, made: str) -> None:
    assert render(text, VALUES, "f") == made


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("\n{{ .Missing }}", "f:2: no value for .Missing"),
        ("{{ .M.nothing }}", "no value for .M.nothing"),
        ("{{ foo 1 }}", "unknown function 'foo'"),
        ("{{ .A | nope }}", "unknown function 'nope'"),
        ("{{ $x }}", "unknown variable $x"),
        ("x\n{{ if .A }}", "f:2: 'if .A' has no end"),
        ("{{ end }}", "unexpected 'end'"),
        ("{{ index .L 7 }}", "index:"),
    ],
)
def test_what_is_not_known_is_an_error_with_its_line(text: str, why: str) -> None:
    with pytest.raises(Failure) as failure:
        render(text, VALUES, "f")
    assert why in str(failure.value)


def test_what_is_not_taken_is_not_looked_at() -> None:
    assert render("{{ if .E }}{{ .Missing }}{{ end }}ok", VALUES, "f") == "ok"
