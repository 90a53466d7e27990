/* Loaded before everything else (priority 100). Three repairs, so that widgets work in a static page. */

/* 1. The theme's Font Awesome replaces every <i> that appears later by an <svg>; ipywidgets still holds
      the <i> of its Play buttons and throws. Icons that are in the page from the start are unaffected. */
window.FontAwesomeConfig = { observeMutations: false };

/* 2. ipywidgets typesets labels through MathJax 2's queue. Hand that work to MathJax 3, if the page has it.
      The property is on window.MathJax, which holds the configuration first and the library later, and the
      library keeps what it does not know. */
(function () {
  function typeset(element) {
    /* Before MathJax has loaded, window.MathJax is only its configuration: try again later. */
    var tries = 0;
    (function attempt() {
      var mathjax = window.MathJax;
      if (mathjax && mathjax.startup && mathjax.startup.promise) {
        mathjax.startup.promise.then(function () {
          if (mathjax.typesetPromise && element) mathjax.typesetPromise([element]).catch(function () {});
        });
      } else if (mathjax && tries++ < 100) setTimeout(attempt, 100);
    })();
  }
  var hub = {
    Queue: function () {
      Array.prototype.forEach.call(arguments, function (job) {
        if (Array.isArray(job) && job[0] === "Typeset") typeset(job[2]);
        else if (typeof job === "function") job();
      });
    },
    Config: function () {},
    Configured: function () {},
  };
  var held = window.MathJax;
  Object.defineProperty(window, "MathJax", {
    configurable: true,
    get: function () { return held; },
    set: function (value) {
      held = value;
      if (held && !held.Hub) held.Hub = hub;
    },
  });
  if (held && !held.Hub) held.Hub = hub;
})();

/* 3. Pictures inside widgets get their tooltip as alternative text; wide tables and formulas that scroll
      inside their box can be reached by keyboard. */
document.addEventListener("DOMContentLoaded", function () {
  function name(image) {
    if (!image.alt) image.alt = image.title || "A frame of the interactive figure";
  }
  new MutationObserver(function () {
    document.querySelectorAll("img.jupyter-widgets").forEach(name);
  }).observe(document.body, { childList: true, subtree: true });
});
