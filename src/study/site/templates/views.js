// Draws every view of a page. Bundled with the libraries when the site is written, so no other host is asked.
document.querySelectorAll("[data-view]").forEach((place) => {
  const { $schema, ...view } = JSON.parse(place.dataset.view); // of an earlier version, which this one reads as well
  vegaEmbed(place, view, { mode: "vega-lite", actions: false, renderer: "svg" });
});
