// What can be wrong with a page to the eye: text that is cut off, a page wider than the screen, too little contrast.
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)].filter((node) => node.offsetParent && node.textContent.trim());
  const rgb = (text) => text.match(/[\d.]+/g).slice(0, 3).map((value) => Number(value) / 255);
  const linear = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = (text) => rgb(text).map(linear).reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (!/, 0\)$|transparent/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const contrast = (node) => {
    const [dark, light] = [luminance(getComputedStyle(node).color), luminance(behind(node))].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  return {
    clipped: all(".tile .value, dd, dt, h2, h3, p").filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.textContent),
    isWiderThanTheScreen: document.documentElement.scrollWidth > innerWidth,
    leastContrast: Math.min(...all("h1, h2, h3, p, dt, dd, label, button:enabled, .name, .value, small, .pill").map(contrast)),
  };
})();
