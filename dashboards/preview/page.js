// Draws the charts of this page from the JSON beside them.
(function () {
  "use strict";
  var specs = JSON.parse(document.getElementById("charts").textContent);
  var options = { mode: "vega-lite", renderer: "svg", actions: false };
  var drawn = Object.keys(specs).map(function (name) {
    return vegaEmbed("#" + name, specs[name], options).catch(function (problem) {
      document.getElementById(name).textContent = "This chart could not be drawn: " + problem.message;
      document.body.dataset.failed = name;
    });
  });
  Promise.all(drawn).then(function () { document.body.dataset.drawn = drawn.length; });
})();
