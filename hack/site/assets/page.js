// On narrow screens, the list of pages is closed.
if (matchMedia("(max-width: 60rem)").matches) document.querySelector(".menu").open = false

// Parts that scroll get the focus, so that the arrow keys scroll them.
{
  const observer = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0
      else target.removeAttribute("tabindex")
    }
  })
  for (const part of document.querySelectorAll("pre, .table, .diagram")) observer.observe(part)
}

// The search. Its index is loaded when the field gets the focus.
{
  const form = document.querySelector(".search")
  const input = form.querySelector("input"), status = form.querySelector("p"), list = form.querySelector("ul")
  const root = document.querySelector("header a").href
  const most = 12
  let pages = null

  // find returns the pages that contain all words, the best first: words in titles count most, then those in headings.
  const find = (words) => {
    const found = []
    for (const page of pages) {
      const title = page.title.toLowerCase(), text = page.text.toLowerCase()
      if (!words.every((word) => title.includes(word) || text.includes(word))) continue
      const heading = page.headings.find(({ title }) => words.every((word) => title.toLowerCase().includes(word)))
      const score = words.reduce((sum, word) => sum + (title.includes(word) ? 100 : 0) + Math.min(9, text.split(word).length - 1), heading ? 50 : 0)
      found.push({ page, heading, score })
    }
    return found.sort((a, b) => b.score - a.score)
  }

  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter((word) => word)
    const found = pages && words.length > 0 ? find(words) : []
    list.replaceChildren(...found.slice(0, most).map(({ page, heading }) => {
      const item = document.createElement("li"), link = document.createElement("a"), place = document.createElement("span")
      link.href = new URL(page.url + (heading ? "#" + heading.id : ""), root)
      link.textContent = page.title
      place.textContent = heading ? heading.title : page.section
      item.append(link, place)
      return item
    }))
    status.textContent = words.length === 0 || !pages ? "" : found.length === 0 ? "No page has all of these words." : found.length === 1 ? "1 page" : found.length + " pages"
    form.classList.toggle("open", status.textContent !== "")
  }

  window.searchIndex = (loaded) => {
    pages = loaded
    show()
  }
  input.addEventListener("focus", () => {
    const script = document.createElement("script")
    script.src = new URL("search.js", root)
    document.head.append(script)
  }, { once: true })
  input.addEventListener("focus", show)
  input.addEventListener("input", show)
  form.addEventListener("focusout", (event) => {
    if (!form.contains(event.relatedTarget)) form.classList.remove("open")
  })
  form.addEventListener("submit", (event) => {
    event.preventDefault()
    list.querySelector("a")?.click()
  })
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && form.contains(event.target)) {
      form.classList.remove("open")
      input.blur()
    } else if (event.key === "/" && event.target !== input) {
      event.preventDefault()
      input.focus()
    }
  })
  form.hidden = false // without scripts, it stays hidden
}
