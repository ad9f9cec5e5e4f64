"""Plots are well-formed and hold what they are to show."""

from xml.etree import ElementTree

from perf.svg import Line, document, lines


def test_a_plot_as_a_file_of_its_own() -> None:
    data = [Line("p50", 0, [(10, 0.5), (1000, 20)]), Line("p99 < 1", 1, [(10, 3), (1000, 70)])]
    root = ElementTree.fromstring(
        document("Cost & time", lines("cost", data, "bytes", "ms", logarithmic=True), [line.name for line in data])
    )
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Cost & time", "p50", "p99 < 1", "bytes", "ms", "10", "100", "1k", "0.1", "1"} <= set(texts)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 2
